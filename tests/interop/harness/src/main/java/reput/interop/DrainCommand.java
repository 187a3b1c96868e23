package reput.interop;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Reads every message of every queue of a topic, as a consumer that starts from nothing.
 *
 * <p>A pull consumer, although deprecated, because it shows each queue's bounds and each pull's
 * status where others hide them in a buffer and a rebalance. It commits no offset.
 */
@SuppressWarnings("deprecation")
record DrainCommand(
    String nameServer, String topic, long atLeast, Duration limit, Protocol protocol)
    implements Callable<Void> {

    private static final String GROUP = "interop_drain";
    private static final int PULL_MAX = 32;
    private static final Duration PULL_LIMIT = Duration.ofSeconds(20);

    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        boolean waits = arguments.size() == 4;
        return new DrainCommand(
            arguments.get(0),
            arguments.get(1),
            waits ? Long.parseLong(arguments.get(2)) : 0,
            Duration.ofSeconds(waits ? Long.parseLong(arguments.get(3)) : 0),
            protocol);
    }

    @Override
    public Void call() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(GROUP);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumerPullTimeoutMillis(PULL_LIMIT.toMillis());
        consumer.start();
        try {
            List<MessageQueue> queues =
                new ArrayList<>(consumer.fetchSubscribeMessageQueues(topic));
            queues.sort(Comparator.comparingInt(MessageQueue::getQueueId));
            if (atLeast > 0) {
                Waiting.until(
                    atLeast + " messages in " + topic,
                    limit,
                    () -> available(consumer, queues) >= atLeast);
            }
            protocol.json(drain(consumer, queues));
        } finally {
            QuickStop.run(consumer::shutdown);
        }
        return null;
    }

    private static long available(DefaultMQPullConsumer consumer, List<MessageQueue> queues)
        throws MQClientException {
        long sum = 0;
        for (MessageQueue queue : queues) {
            sum += consumer.maxOffset(queue) - consumer.minOffset(queue);
        }
        return sum;
    }

    private static Map<String, Object> drain(
        DefaultMQPullConsumer consumer, List<MessageQueue> queues) throws Exception {
        Digests digests = new Digests();
        Map<String, Map<String, Long>> bounds = new LinkedHashMap<>();
        for (MessageQueue queue : queues) {
            long min = consumer.minOffset(queue);
            long max = consumer.maxOffset(queue);
            long count = drainQueue(consumer, queue, min, max, digests);
            Map<String, Long> bound = new LinkedHashMap<>();
            bound.put("min", min);
            bound.put("max", max);
            bound.put("count", count);
            bounds.put(Integer.toString(queue.getQueueId()), bound);
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("messages", digests.count());
        result.put("queues", bounds);
        result.put("sha256", digests.placed());
        result.put("bodies_sha256", digests.bodies());
        return result;
    }

    private static long drainQueue(
        DefaultMQPullConsumer consumer, MessageQueue queue, long min, long max, Digests digests)
        throws Exception {
        long count = 0;
        long position = min;
        long deadline = System.nanoTime() + PULL_LIMIT.toNanos();
        while (position < max) {
            PullResult result = consumer.pull(queue, "*", position, PULL_MAX);
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    digests.add(queue.getQueueId(), message.getQueueOffset(), message.getBody());
                    count++;
                }
            }
            if (result.getNextBeginOffset() > position) {
                position = result.getNextBeginOffset();
                deadline = System.nanoTime() + PULL_LIMIT.toNanos();
            } else if (System.nanoTime() > deadline) {
                throw new IllegalStateException(
                    "stuck at " + position + " of " + max + " in " + queue + ": " + result);
            } else {
                Thread.sleep(10);
            }
        }
        return count;
    }
}
