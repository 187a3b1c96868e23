package reput.interop;

import java.time.Duration;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * A producer at a steady rate, and two push consumers that hear of each message: one of the broker
 * that stores it, one of another server of the same log.
 *
 * <p>Each line SECONDS on stdin sends for so long and answers when both listeners have heard of all
 * of it: {@code rate}, and for each server the milliseconds from a message's store time to its
 * listener, in the order of sending; -1 where it did not come within {@link #LIMIT}. A store time
 * is whole milliseconds, so that each time is up to one too long.
 */
record FreshCommand(
    String broker, String served, String topic, int rate, int size, Protocol protocol)
    implements Callable<Void> {

    private static final String NUMBER = "number";
    private static final long TICK_NANOS = 5_000_000;
    private static final double NANOS = 1e9;
    private static final Duration LIMIT = Duration.ofSeconds(60);
    /** Messages on the way: a broker that has just started is not run over by a producer. */
    private static final int WINDOW = 256;

    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return new FreshCommand(
            arguments.get(0), arguments.get(1), arguments.get(2),
            Integer.parseInt(arguments.get(3)), Integer.parseInt(arguments.get(4)), protocol);
    }

    @Override
    public Void call() throws Exception {
        Hearing byBroker = new Hearing(broker, topic);
        Hearing byServed = new Hearing(served, topic);
        DefaultMQProducer producer = new DefaultMQProducer("fresh");
        producer.setNamesrvAddr(broker);
        producer.setRetryTimesWhenSendAsyncFailed(0);
        producer.setSendMsgTimeout((int) LIMIT.toMillis());
        producer.start();
        List<MessageQueue> queues = new ArrayList<>(producer.fetchPublishMessageQueues(topic));
        protocol.ready();
        for (String line : Protocol.requests()) {
            int count = (int) Math.ceil(Double.parseDouble(line) * rate);
            byBroker.expect(count);
            byServed.expect(count);
            Map<String, Object> found = new LinkedHashMap<>();
            found.put("rate", send(producer, queues, count));
            found.put("broker", byBroker.await());
            found.put("served", byServed.await());
            protocol.json(found);
        }
        QuickStop.run(producer::shutdown);
        QuickStop.run(byBroker.consumer::shutdown);
        QuickStop.run(byServed.consumer::shutdown);
        return null;
    }

    /** Returns the messages a second at which they were sent, several in a tick. */
    private double send(DefaultMQProducer producer, List<MessageQueue> queues, int count)
        throws Exception {
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Semaphore window = new Semaphore(WINDOW);
        SendCallback callback = new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
                if (result.getSendStatus() != SendStatus.SEND_OK) {
                    failure.set(new IllegalStateException("not stored: " + result));
                }
                window.release();
            }

            @Override
            public void onException(Throwable problem) {
                failure.compareAndSet(null, problem);
                window.release();
            }
        };
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'a');
        int ofTick = (int) Math.max(1, rate * TICK_NANOS / (long) NANOS);
        long began = System.nanoTime();
        for (int number = 0; number < count; number++) {
            long due = began + (long) (number / ofTick * ofTick * NANOS / rate);
            for (long wait = due - System.nanoTime(); wait > 0; wait = due - System.nanoTime()) {
                LockSupport.parkNanos(wait);
            }
            window.acquire();
            Message message = new Message(topic, body);
            message.putUserProperty(NUMBER, Integer.toString(number));
            producer.send(message, queues.get(number % queues.size()), callback);
        }
        double reached = count * NANOS / (System.nanoTime() - began);
        boolean answered = window.tryAcquire(WINDOW, LIMIT.toSeconds(), TimeUnit.SECONDS);
        if (!answered || failure.get() != null) {
            throw new IllegalStateException("not all messages were stored", failure.get());
        }
        return reached;
    }

    /** What one server's listener hears of the messages of the current run. */
    private static final class Hearing {
        private final DefaultMQPushConsumer consumer;
        private final AtomicInteger heard = new AtomicInteger();
        private volatile double[] waits = new double[0];

        Hearing(String nameServer, String topic) throws Exception {
            consumer = new DefaultMQPushConsumer("fresh");
            // by default all clients of a process share one connection to one name server
            consumer.setInstanceName("fresh@" + nameServer.replace(':', '-'));
            consumer.setNamesrvAddr(nameServer);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(this::hear);
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }

        void expect(int count) {
            double[] expected = new double[count];
            Arrays.fill(expected, -1);
            heard.set(0);
            waits = expected;
        }

        private void hear(MessageExt message) {
            long now = ChronoUnit.MICROS.between(Instant.EPOCH, Instant.now());
            String number = message.getUserProperty(NUMBER);
            if (number != null) {
                waits[Integer.parseInt(number)] = now / 1e3 - message.getStoreTimestamp();
                heard.incrementAndGet();
            }
        }

        double[] await() throws Exception {
            double[] expected = waits;
            long deadline = System.nanoTime() + LIMIT.toNanos();
            while (heard.get() < expected.length && System.nanoTime() < deadline) {
                Thread.sleep(1);
            }
            return expected;
        }
    }
}
