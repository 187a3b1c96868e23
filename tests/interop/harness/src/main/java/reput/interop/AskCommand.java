package reput.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import org.apache.rocketmq.broker.filter.ConsumerFilterData;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.filter.ExpressionMessageFilter;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Asks a store what clients ask: one line each, words separated by tabs, one answer per line.
 *
 * <p>{@code bounds TOPIC QUEUE} answers the least and the greatest offset; {@code time TOPIC QUEUE
 * TIME LOWER|UPPER} an offset; {@code key TOPIC KEY MAX BEGIN END} the index's end and the physical
 * offsets found; {@code get TOPIC QUEUE OFFSET MAX GROUP} status, bounds, physical offsets and how
 * many messages the bit maps alone ruled out, by GROUP's expression, or without a filter for "-".
 * The last line is {@code dispatched} and how many messages the store dispatched.
 */
record AskCommand(OpenStore open, Protocol protocol) implements Callable<Void> {
    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return () -> new AskCommand(
            OpenStore.open(StoreSettings.parse(arguments)), protocol).call();
    }

    @Override
    public Void call() throws Exception {
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            protocol.line(answer(line.split("\t")));
        }
        if (!open.close()) {
            throw new IllegalStateException("unclean stop: the abort file is still there");
        }
        protocol.line("dispatched " + open.dispatched());
        return null;
    }

    private String answer(String[] words) throws Exception {
        DefaultMessageStore store = open.store();
        String topic = words[1];
        return switch (words[0]) {
            case "bounds" -> store.getMinOffsetInQueue(topic, Integer.parseInt(words[2])) + " "
                + store.getMaxOffsetInQueue(topic, Integer.parseInt(words[2]));
            case "time" -> String.valueOf(store.getOffsetInQueueByTime(
                topic, Integer.parseInt(words[2]), Long.parseLong(words[3]),
                BoundaryType.valueOf(words[4])));
            case "key" -> query(topic, words[2], Integer.parseInt(words[3]),
                Long.parseLong(words[4]), Long.parseLong(words[5]));
            case "get" -> get(topic, Integer.parseInt(words[2]), Long.parseLong(words[3]),
                Integer.parseInt(words[4]), words[5]);
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    private String query(String topic, String key, int max, long begin, long end) {
        QueryMessageResult found = open.store().queryMessage(topic, key, max, begin, end);
        String answer = found.getIndexLastUpdateTimestamp() + " "
            + found.getIndexLastUpdatePhyoffset() + " " + offsets(found.getMessageMapedList());
        found.release();
        return answer;
    }

    private String get(String topic, int queueId, long offset, int max, String group)
        throws Exception {
        AtomicInteger ruledOut = new AtomicInteger();
        MessageFilter filter = group.equals("-") ? null : filter(topic, group, ruledOut);
        GetMessageResult found =
            open.store().getMessage(group, topic, queueId, offset, max, filter);
        String answer = found.getStatus() + " " + found.getNextBeginOffset() + " "
            + found.getMinOffset() + " " + found.getMaxOffset() + " " + ruledOut + " "
            + offsets(found.getMessageMapedList());
        found.release();
        return answer;
    }

    /** The group's own filter, which counts what it rules out before it reads a message. */
    private MessageFilter filter(String topic, String group, AtomicInteger ruledOut)
        throws Exception {
        ConsumerFilterManager filters = open.filters();
        ConsumerFilterData data = filters.get(topic, group);
        return new ExpressionMessageFilter(
            FilterAPI.build(topic, data.getExpression(), data.getExpressionType()), data, filters) {
            @Override
            public boolean isMatchedByConsumeQueue(
                Long tagsCode, ConsumeQueueExt.CqExtUnit unit) {
                boolean matched = super.isMatchedByConsumeQueue(tagsCode, unit);
                if (!matched) {
                    ruledOut.incrementAndGet();
                }
                return matched;
            }
        };
    }

    private static String offsets(List<SelectMappedBufferResult> found) {
        return found.stream()
            .map(message -> Long.toString(message.getStartOffset()))
            .collect(Collectors.joining(","));
    }
}
