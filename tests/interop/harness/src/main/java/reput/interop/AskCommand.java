package reput.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import java.util.zip.CRC32;
import org.apache.rocketmq.broker.filter.ConsumerFilterData;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.filter.ExpressionMessageFilter;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Asks a store what clients ask: words separated by tabs.
 *
 * <ul>
 * <li>{@code bounds TOPIC QUEUE}: the least and the greatest offset.
 * <li>{@code time TOPIC QUEUE TIME LOWER|UPPER}: an offset.
 * <li>{@code stored TOPIC QUEUE OFFSET}: the store time of a message.
 * <li>{@code earliest TOPIC QUEUE}: of the first one; of the log's first one without words.
 * <li>{@code key TOPIC KEY MAX BEGIN END}: the index's end and the messages found.
 * <li>{@code get TOPIC QUEUE OFFSET MAX BYTES FILTER}: status, next offset, bounds, how many
 *     messages were ruled out by their units alone, and the messages. FILTER is {@code -}, {@code
 *     tags:EXPRESSION}, {@code sql:EXPRESSION}, or {@code group:NAME} for a registered one.
 * <li>{@code message OFFSET}: id, CRC of the plain body and of the properties.
 * <li>{@code arrivals}: a JSON array of what the message-arriving listener is told, in order, while
 *     the whole log is dispatched once more.
 * <li>{@code memory PERCENT}: how much of the machine's memory the log's end may be taken to be in
 *     from now on.
 * </ul>
 *
 * A message is its physical offset, size and the CRC of its bytes; a pulled one has its place in
 * the queue before. Beside the answers stands how many messages the store dispatched.
 */
record AskCommand(StoreSettings settings, List<String> questions, Protocol protocol)
    implements Callable<Void> {
    /** Reads {@code STORE_DIR [key=value...] -- QUESTION...}. */
    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        int split = arguments.indexOf("--");
        return split < 1 ? null : () -> new AskCommand(
            StoreSettings.parse(arguments.subList(0, split)),
            arguments.subList(split + 1, arguments.size()),
            protocol).call();
    }

    @Override
    public Void call() throws Exception {
        OpenStore open = OpenStore.open(settings);
        List<String> answers =
            QuestionsCommand.answers(questions, question -> answer(open, question.split("\t")));
        if (!open.close()) {
            throw new IllegalStateException("unclean stop: the abort file is still there");
        }
        protocol.json(Map.of("answers", answers, "dispatched", open.dispatched()));
        return null;
    }

    private static String answer(OpenStore open, String[] words) throws Exception {
        DefaultMessageStore store = open.store();
        return switch (words[0]) {
            case "bounds" -> store.getMinOffsetInQueue(words[1], Integer.parseInt(words[2])) + " "
                + store.getMaxOffsetInQueue(words[1], Integer.parseInt(words[2]));
            case "time" -> String.valueOf(store.getOffsetInQueueByTime(
                words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]),
                BoundaryType.valueOf(words[4])));
            case "stored" -> String.valueOf(store.getMessageStoreTimeStamp(
                words[1], Integer.parseInt(words[2]), Long.parseLong(words[3])));
            case "earliest" -> String.valueOf(words.length == 1 ? store.getEarliestMessageTime()
                : store.getEarliestMessageTime(words[1], Integer.parseInt(words[2])));
            case "key" -> query(
                store, words[1], words[2], Integer.parseInt(words[3]),
                Long.parseLong(words[4]), Long.parseLong(words[5]));
            case "get" -> get(open, words);
            case "message" -> message(store, Long.parseLong(words[1]));
            case "arrivals" -> JSON.toJSONString(
                open.dispatchAgain(), JSONWriter.Feature.FieldBased);
            case "memory" -> {
                int percent = Integer.parseInt(words[1]);
                store.getMessageStoreConfig().setAccessMessageInMemoryMaxRatio(percent);
                yield words[1];
            }
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    private static String query(
        DefaultMessageStore store, String topic, String key, int max, long begin, long end) {
        QueryMessageResult found = store.queryMessage(topic, key, max, begin, end);
        String answer = found.getIndexLastUpdateTimestamp() + " "
            + found.getIndexLastUpdatePhyoffset() + " "
            + found.getMessageMapedList().stream()
                .map(AskCommand::identity).collect(Collectors.joining(","));
        found.release();
        return answer;
    }

    private static String get(OpenStore open, String[] words) throws Exception {
        AtomicInteger ruledOut = new AtomicInteger();
        GetMessageResult found = open.store().getMessage(
            "group", words[1], Integer.parseInt(words[2]), Long.parseLong(words[3]),
            Integer.parseInt(words[4]), Integer.parseInt(words[5]),
            filter(open, words[1], words[6], ruledOut));
        List<SelectMappedBufferResult> messages = found.getMessageMapedList();
        String answer = found.getStatus() + " " + found.getNextBeginOffset() + " "
            + found.getMinOffset() + " " + found.getMaxOffset() + " " + ruledOut + " "
            + IntStream.range(0, messages.size())
                .mapToObj(i -> found.getMessageQueueOffset().get(i) + ":"
                    + identity(messages.get(i)))
                .collect(Collectors.joining(","));
        found.release();
        return answer;
    }

    /** A broker's filter, which counts what it rules out before it reads a message. */
    private static MessageFilter filter(
        OpenStore open, String topic, String words, AtomicInteger ruledOut) throws Exception {
        if (words.equals("-")) {
            return null;
        }
        String[] parts = words.split(":", 2);
        ConsumerFilterManager filters =
            open.filters() == null ? new ConsumerFilterManager() : open.filters();
        ConsumerFilterData data = switch (parts[0]) {
            case "group" -> filters.get(topic, parts[1]);
            case "sql" -> ConsumerFilterManager.build(
                topic, "group", parts[1], ExpressionType.SQL92, 1);
            default -> null;
        };
        SubscriptionData subscription = data == null
            ? FilterAPI.build(topic, parts[1], ExpressionType.TAG)
            : FilterAPI.build(topic, data.getExpression(), data.getExpressionType());
        return new ExpressionMessageFilter(subscription, data, filters) {
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

    private static String message(DefaultMessageStore store, long offset) {
        SelectMappedBufferResult found = store.selectOneMessageByOffset(offset);
        MessageExt message = MessageDecoder.decode(found.getByteBuffer(), true, true);
        found.release();
        String properties = new TreeMap<>(message.getProperties()).entrySet().stream()
            .map(entry -> entry.getKey() + "=" + entry.getValue() + "\n")
            .collect(Collectors.joining());
        byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
        return message.getMsgId() + " " + crc(ByteBuffer.wrap(body)) + " "
            + crc(StandardCharsets.UTF_8.encode(properties));
    }

    private static String identity(SelectMappedBufferResult message) {
        return message.getStartOffset() + ":" + message.getSize() + ":"
            + crc(message.getByteBuffer().slice());
    }

    private static long crc(ByteBuffer data) {
        CRC32 crc = new CRC32();
        crc.update(data);
        return crc.getValue();
    }
}
