package reput.interop;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.broker.filter.CommitLogDispatcherCalcBitMap;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.filter.ExpressionMessageFilter;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.util.BloomFilter;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.DispatchRequest;

/**
 * RocketMQ's own filters, asked with a word and its arguments: texts in hex, "." for an empty one, "-"
 * for null.
 *
 * <p>One manager of consumer filters answers all of a command's questions, with RocketMQ's test shape
 * of 20 percent and 64 consumers; what was registered stays.
 */
final class FilterCommand implements QuestionsCommand.Answering {
    private final ConsumerFilterManager manager = new ConsumerFilterManager();

    @Override
    public String answer(String question) throws Exception {
        String[] words = question.split(" ");
        return switch (words[0]) {
            case "evaluate" -> evaluate(text(words[1]), properties(words[2]));
            case "tags" -> tags(text(words[1]));
            case "bloom" -> bloom(
                Integer.parseInt(words[1]), Integer.parseInt(words[2]), text(words[3]));
            case "register" -> String.valueOf(manager.register(
                text(words[1]), text(words[2]), text(words[3]), ExpressionType.SQL92, 1));
            case "encode" -> hex(manager.encode(true).getBytes(StandardCharsets.UTF_8));
            case "bits" -> bits(manager, text(words[1]), properties(words[2]));
            case "match" -> match(manager, words);
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    /** TRUE, FALSE, NULL, INVALID (refused) or THROWN (while evaluating). */
    private static String evaluate(String text, Map<String, String> properties) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(text);
        } catch (MQFilterException e) {
            return "INVALID";
        }
        try {
            Object value = expression.evaluate(new MessageEvaluationContext(properties));
            return String.valueOf(value).toUpperCase();
        } catch (Exception e) {
            return "THROWN";
        }
    }

    /** ALL, REFUSED, or the hashes in ascending order. */
    private static String tags(String text) {
        SubscriptionData subscription;
        try {
            subscription = FilterAPI.buildSubscriptionData("topic", text);
        } catch (Exception e) {
            return "REFUSED";
        }
        if (subscription.getSubString().equals(SubscriptionData.SUB_ALL)) {
            return "ALL";
        }
        return "CODES " + new TreeSet<>(subscription.getCodeSet()).stream()
            .map(String::valueOf).collect(Collectors.joining(" "));
    }

    /** Hash count, bit count, positions; REFUSED for impossible settings. */
    private static String bloom(int errorRate, int consumers, String key) {
        BloomFilter filter;
        try {
            filter = BloomFilter.createByFn(errorRate, consumers);
        } catch (IllegalArgumentException e) {
            return "REFUSED";
        }
        return filter.getK() + " " + filter.getM() + " "
            + Arrays.stream(filter.calcBitPositions(key))
                .mapToObj(String::valueOf).collect(Collectors.joining(" "));
    }

    private static String bits(
        ConsumerFilterManager manager, String topic, Map<String, String> properties) {
        BrokerConfig config = new BrokerConfig();
        config.setEnableCalcFilterBitMap(true);
        DispatchRequest request =
            new DispatchRequest(topic, 0, 0, 1, 0, 0, 0, null, null, 0, 0, properties);
        new CommitLogDispatcherCalcBitMap(config, manager).dispatch(request);
        return request.getBitMap() == null ? "-" : hex(request.getBitMap());
    }

    /** match TOPIC GROUP MILLISECONDS_AFTER_BIRTH BITMAP PROPERTIES: both of a pull's tests. */
    private static String match(ConsumerFilterManager manager, String[] words) throws Exception {
        var data = manager.get(text(words[1]), text(words[2]));
        SubscriptionData subscription =
            FilterAPI.build(text(words[1]), data.getExpression(), ExpressionType.SQL92);
        ExpressionMessageFilter filter = new ExpressionMessageFilter(subscription, data, manager);
        byte[] bitMap = words[4].equals("-") ? null : HexFormat.of().parseHex(words[4]);
        long storeTime = data.getBornTime() + Long.parseLong(words[3]);
        var unit = new ConsumeQueueExt.CqExtUnit(0L, storeTime, bitMap);
        return filter.isMatchedByConsumeQueue(0L, unit) + " "
            + filter.isMatchedByCommitLog(null, properties(words[5]));
    }

    /** name=value,name=value. */
    private static Map<String, String> properties(String word) {
        Map<String, String> properties = new HashMap<>();
        if (!word.equals("-")) {
            for (String pair : word.split(",")) {
                String[] parts = pair.split("=", 2);
                properties.put(text(parts[0]), text(parts[1]));
            }
        }
        return properties;
    }

    private static String text(String word) {
        if (word.equals("-")) {
            return null;
        }
        String digits = word.equals(".") ? "" : word;
        return new String(HexFormat.of().parseHex(digits), StandardCharsets.UTF_8);
    }

    private static String hex(byte[] bytes) {
        return HexFormat.of().formatHex(bytes);
    }
}
