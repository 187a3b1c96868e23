package reput.bench;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Locale;
import java.util.concurrent.FutureTask;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * Times RocketMQ's own dispatch on a live log: from the return of {@code putMessage} until the
 * message's queue has its entry.
 *
 * <p>A line {@code RATE SECONDS SIZE} on stdin appends so many messages a second with bodies of SIZE
 * bytes, in ticks of 1 ms as {@code bench.producer} does. A second thread looks at the queues every
 * millisecond, as {@code bench.live} looks at the watermark. The answer has the latency of every
 * message in nanoseconds, in order, and the rate reached.
 */
final class Live {
    private static final long TICK_NANOS = 1_000_000;
    private static final long POLL_NANOS = 1_000_000;
    private static final long DRAIN_NANOS = 60_000_000_000L;
    private static final String[] TOPICS = IntStream.range(0, 8)
        .mapToObj(number -> "Topic_00" + number).toArray(String[]::new);
    private static final int QUEUES = 4;

    private final DefaultMessageStore store;
    private final PrintStream answers;
    private final InetSocketAddress host =
        new InetSocketAddress(InetAddress.getLoopbackAddress(), 10911);
    private long sequence;

    /** Times of one run; the watcher reads what {@link #putCount} covers. */
    private long[] returned;
    private long[] positions;
    private volatile int putCount;

    Live(DefaultMessageStore store, PrintStream answers) {
        this.store = store;
        this.answers = answers;
    }

    void serve() throws Exception {
        BufferedReader requests = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] words = line.split(" ");
            run(Integer.parseInt(words[0]), Double.parseDouble(words[1]),
                Integer.parseInt(words[2]));
        }
    }

    private void run(int rate, double seconds, int bodySize) throws Exception {
        int perTick = (int) Math.max(1, rate * TICK_NANOS / 1_000_000_000L);
        int ticks = (int) Math.ceil(seconds * rate / perTick);
        int count = ticks * perTick;
        returned = new long[count];
        positions = new long[count];
        putCount = 0;
        long[] latencies = new long[count];
        long first = sequence;
        FutureTask<Void> watcher = new FutureTask<>(() -> watch(first, latencies));
        new Thread(watcher).start();
        long began = System.nanoTime();
        for (int tick = 0; tick < ticks; tick++) {
            long wait = began + tick * 1_000_000_000L * perTick / rate - System.nanoTime();
            if (wait > 0) {
                LockSupport.parkNanos(wait);
            }
            for (int i = 0; i < perTick; i++) {
                put(bodySize);
            }
        }
        double reached = count * 1e9 / (System.nanoTime() - began);
        watcher.get();
        answers.println(String.format(
            Locale.ROOT, "{\"rate\":%.1f,\"latencies_ns\":[%s]}", reached,
            Arrays.stream(latencies).mapToObj(Long::toString).collect(Collectors.joining(","))));
    }

    private void put(int bodySize) {
        MessageExtBrokerInner message = message(sequence++, bodySize);
        PutMessageResult result = store.putMessage(message);
        long now = System.nanoTime();
        if (!result.isOk()) {
            throw new IllegalStateException("not put: " + result.getPutMessageStatus());
        }
        int index = putCount;
        returned[index] = now;
        positions[index] = result.getAppendMessageResult().getLogicsOffset();
        putCount = index + 1;
    }

    /** A latency of -1 stays where no entry was seen within a minute of the message. */
    private Void watch(long first, long[] latencies) throws Exception {
        Arrays.fill(latencies, -1);
        int[] next = new int[TOPICS.length * QUEUES];
        for (int queue = 0; queue < next.length; queue++) {
            next[queue] = (int) Math.floorMod(queue - first, (long) next.length);
        }
        int seen = 0;
        long changed = System.nanoTime();
        while (seen < latencies.length && System.nanoTime() - changed < DRAIN_NANOS) {
            LockSupport.parkNanos(POLL_NANOS);
            for (int queue = 0; queue < next.length; queue++) {
                if (next[queue] >= putCount) {
                    continue;
                }
                long end = store.getMaxOffsetInQueue(topic(queue), queueId(queue));
                long now = System.nanoTime();
                int known = putCount;
                while (next[queue] < known && positions[next[queue]] < end) {
                    latencies[next[queue]] = Math.max(0, now - returned[next[queue]]);
                    next[queue] += next.length;
                    seen++;
                    changed = now;
                }
            }
        }
        return null;
    }

    private MessageExtBrokerInner message(long number, int bodySize) {
        int queue = (int) (number % (TOPICS.length * QUEUES));
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic(queue));
        message.setQueueId(queueId(queue));
        byte[] body = new byte[bodySize];
        Arrays.fill(body, (byte) ('a' + number % 26));
        message.setBody(body);
        message.setTags("Tag" + (char) ('A' + number % 4));
        message.setKeys("order-" + number);
        MessageAccessor.putProperty(
            message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
            String.format(Locale.ROOT, "7F0000010000%020d", number));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(host);
        message.setStoreHost(host);
        message.setTagsCode(
            MessageExtBrokerInner.tagsString2tagsCode(TopicFilterType.SINGLE_TAG, message.getTags()));
        message.setPropertiesString(
            MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    private static String topic(int queue) {
        return TOPICS[queue % TOPICS.length];
    }

    private static int queueId(int queue) {
        return queue / TOPICS.length;
    }
}
