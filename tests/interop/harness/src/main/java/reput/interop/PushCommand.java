package reput.interop;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/**
 * A push consumer with a listener that only counts, timed from its first message to the one with
 * the number COUNT.
 */
record PushCommand(String nameServer, String topic, String group, long count, Protocol protocol)
    implements Callable<Void> {

    private static final long LIMIT_SECONDS = 600;
    private static final double NANOS = 1e9;

    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return new PushCommand(
            arguments.get(0), arguments.get(1), arguments.get(2),
            Long.parseLong(arguments.get(3)), protocol);
    }

    @Override
    public Void call() throws Exception {
        AtomicLong seen = new AtomicLong();
        AtomicLong began = new AtomicLong();
        AtomicLong ended = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long before = seen.getAndAdd(messages.size());
            if (before == 0) {
                began.set(System.nanoTime());
            }
            if (before < count && before + messages.size() >= count) {
                ended.set(System.nanoTime());
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean complete = done.await(LIMIT_SECONDS, TimeUnit.SECONDS);
        consumer.shutdown();
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("messages", seen.get());
        found.put("seconds", complete ? (ended.get() - began.get()) / NANOS : -1.0);
        protocol.json(found);
        return null;
    }
}
