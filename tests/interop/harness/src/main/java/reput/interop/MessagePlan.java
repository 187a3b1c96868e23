package reput.interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Random;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;

/**
 * What to send, step by step, from a seed alone: the same seed gives the same messages in the same
 * order, so two brokers can be fed alike and a failure can be repeated.
 *
 * <p>The first steps show each kind once, so that even a short run covers them all.
 */
final class MessagePlan implements Iterator<MessagePlan.Step> {
    /** How a step reaches the broker. */
    enum Kind { PLAIN, BATCH, COMPRESSED, DELAYED, COMMIT, ROLLBACK }

    /** One or, for a batch, several messages and the number of the queue to choose, any positive. */
    record Step(Kind kind, List<Message> messages, int queueChoice) {
    }

    /** User property of a transaction's message: the name of its kind. */
    static final String OUTCOME = "outcome";

    private static final String[] TAGS = {null, "TagA", "TagB", "标签", "naïve", "red😀"};
    private static final int BATCH_MIN = 2;
    private static final int BATCH_MAX = 8;
    private static final int BODY_MIN = 16;
    private static final int BODY_MAX = 400;
    /** Above the client's threshold of 4096, so that it compresses. */
    private static final int BIG_BODY_MIN = 5_000;
    private static final int BIG_BODY_MAX = 20_000;

    private final String topic;
    private final int count;
    private final long seed;
    private final List<String> lightQueues;
    private final Random random;
    private int planned;
    private int steps;

    MessagePlan(String topic, int count, long seed, List<String> lightQueues) {
        this.topic = topic;
        this.count = count;
        this.seed = seed;
        this.lightQueues = lightQueues;
        this.random = new Random(seed);
    }

    @Override
    public boolean hasNext() {
        return planned < count;
    }

    @Override
    public Step next() {
        if (!hasNext()) {
            throw new NoSuchElementException();
        }
        Kind kind = chooseKind();
        int size = 1;
        if (kind == Kind.BATCH) {
            size = Math.min(between(BATCH_MIN, BATCH_MAX), count - planned);
        }
        List<Message> messages = new ArrayList<>(size);
        for (int i = 0; i < size; i++) {
            messages.add(message(kind));
        }
        steps++;
        return new Step(kind, messages, random.nextInt(Integer.MAX_VALUE));
    }

    private Kind chooseKind() {
        int percent = random.nextInt(100);
        if (steps < Kind.values().length) {
            return Kind.values()[steps];
        }
        if (percent < 70) {
            return Kind.PLAIN;
        }
        if (percent < 85) {
            return Kind.BATCH;
        }
        if (percent < 92) {
            return Kind.COMPRESSED;
        }
        if (percent < 95) {
            return Kind.DELAYED;
        }
        return percent < 98 ? Kind.COMMIT : Kind.ROLLBACK;
    }

    private Message message(Kind kind) {
        int index = planned++;
        Message message = new Message(topic, kind == Kind.COMPRESSED ? bigBody() : smallBody(index));
        String tag = TAGS[random.nextInt(TAGS.length)];
        if (tag != null) {
            message.setTags(tag);
        }
        switch (random.nextInt(3)) {
            case 1 -> message.setKeys("order-" + index);
            case 2 -> message.setKeys("order-" + index + " 客户-" + random.nextInt(50));
            default -> { }
        }
        if (random.nextInt(2) == 0) {
            message.putUserProperty("amount", Integer.toString(random.nextInt(100_000)));
            message.putUserProperty("区域", random.nextBoolean() ? "华东" : "华北");
        }
        message.setFlag(random.nextInt(4));
        if (kind == Kind.PLAIN && !lightQueues.isEmpty() && random.nextBoolean()) {
            List<String> names = new ArrayList<>(lightQueues);
            Collections.shuffle(names, random);
            int chosen = between(1, names.size());
            MessageAccessor.putProperty(
                message,
                MessageConst.PROPERTY_INNER_MULTI_DISPATCH,
                String.join(MixAll.LMQ_DISPATCH_SEPARATOR, names.subList(0, chosen)));
        }
        if (kind == Kind.DELAYED) {
            message.setDelayTimeLevel(1);
        }
        if (kind == Kind.COMMIT || kind == Kind.ROLLBACK) {
            message.putUserProperty(OUTCOME, kind.name());
        }
        return message;
    }

    private byte[] smallBody(int index) {
        byte[] body = new byte[between(BODY_MIN, BODY_MAX)];
        random.nextBytes(body);
        byte[] name = (seed + "/" + index + "/").getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(name, 0, body, 0, Math.min(name.length, body.length));
        return body;
    }

    /** Few different letters, so that compressing it shortens it. */
    private byte[] bigBody() {
        byte[] body = new byte[between(BIG_BODY_MIN, BIG_BODY_MAX)];
        for (int i = 0; i < body.length; i++) {
            body[i] = (byte) ('a' + random.nextInt(4));
        }
        return body;
    }

    private int between(int min, int max) {
        return min + random.nextInt(max - min + 1);
    }
}
