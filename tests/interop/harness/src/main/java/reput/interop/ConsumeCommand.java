package reput.interop;

import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.zip.CRC32;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * A consumer that says {@code READY}, then a line for each message: queue, queue offset, CRC of the
 * body, reconsumeTimes. It ends at the end of stdin, says {@code STOPPED}, and has then committed.
 *
 * <p>Only classes that RocketMQ 4.9 has too are used, by the names that both have: the same jar runs
 * with the client of either.
 */
record ConsumeCommand(
    String nameServer, String kind, String topic, String group, String filter, String from,
    Protocol protocol) implements Callable<Void> {

    private static final long STOP_MILLIS = 10_000;
    private static final int PULL_MAX = 32;
    /** Of a listener that always fails. */
    private static final int MAX_RECONSUME_TIMES = 2;

    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return new ConsumeCommand(
            arguments.get(0), arguments.get(1), arguments.get(2), arguments.get(3),
            arguments.get(4), arguments.get(5), protocol);
    }

    @Override
    public Void call() throws Exception {
        switch (kind) {
            case "concurrent", "orderly", "broadcasting", "failing", "givingup", "orderlygivingup" ->
                push();
            case "subscribe", "assign" -> litePull();
            case "pull" -> pull();
            default -> throw new IllegalArgumentException(kind);
        }
        protocol.line("STOPPED");
        return null;
    }

    private void push() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            group, signer(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(from));
        // else a message that the listener has told of is not committed when the consumer stops
        consumer.setAwaitTerminationMillisWhenShutdown(STOP_MILLIS);
        if (kind.equals("broadcasting")) {
            setBroadcasting(consumer);
        }
        if (kind.endsWith("givingup")) {
            consumer.setMaxReconsumeTimes(MAX_RECONSUME_TIMES);
            consumer.setSuspendCurrentQueueTimeMillis(10);
            // a server that was killed is told of the group again soon
            consumer.setHeartbeatBrokerInterval(1000);
        }
        if (filter.startsWith("sql:")) {
            consumer.subscribe(topic, MessageSelector.bySql(filter.substring(4)));
        } else {
            consumer.subscribe(topic, filter.substring("tags:".length()));
        }
        if (kind.startsWith("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(this::tell);
                return kind.equals("orderly")
                    ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(this::tell);
                return kind.equals("givingup")
                    || kind.equals("failing") && messages.get(0).getReconsumeTimes() == 0
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        protocol.ready();
        awaitStop();
        QuickStop.run(consumer::shutdown);
    }

    /** Signs every request if the properties have an access key; null without one. */
    private static RPCHook signer() {
        String key = System.getProperty("reput.accessKey");
        String secret = System.getProperty("reput.secretKey");
        return key == null ? null : new AclClientRPCHook(new SessionCredentials(key, secret));
    }

    /** The enum moved from one package to another between 4.9 and 5. */
    private static void setBroadcasting(DefaultMQPushConsumer consumer) throws Exception {
        for (var method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Object[] models = method.getParameterTypes()[0].getEnumConstants();
                for (Object model : models) {
                    if (model.toString().equals("BROADCASTING")) {
                        method.invoke(consumer, model);
                    }
                }
            }
        }
    }

    /** Takes every queue, each from its committed offset on. */
    @SuppressWarnings("deprecation")
    private void pull() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, signer());
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        Map<MessageQueue, Long> positions = new HashMap<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long committed = consumer.fetchConsumeOffset(queue, true);
            positions.put(queue, committed < 0 ? consumer.minOffset(queue) : committed);
        }
        protocol.ready();
        AtomicBoolean stopping = new AtomicBoolean();
        FutureTask<Void> poller = new FutureTask<>(() -> {
            while (!stopping.get()) {
                for (MessageQueue queue : positions.keySet()) {
                    PullResult result = consumer.pull(
                        queue, filter.substring("tags:".length()), positions.get(queue), PULL_MAX);
                    if (result.getPullStatus() == PullStatus.FOUND) {
                        result.getMsgFoundList().forEach(this::tell);
                    }
                    positions.put(queue, result.getNextBeginOffset());
                }
            }
            return null;
        });
        new Thread(poller).start();
        awaitStop();
        stopping.set(true);
        poller.get();
        for (MessageQueue queue : positions.keySet()) {
            consumer.updateConsumeOffset(queue, positions.get(queue));
            consumer.getOffsetStore().persist(queue);
        }
        consumer.shutdown();
    }

    @SuppressWarnings("deprecation")
    private void litePull() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, signer());
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf(from));
        if (kind.equals("subscribe")) {
            if (filter.startsWith("sql:")) {
                consumer.subscribe(topic, MessageSelector.bySql(filter.substring(4)));
            } else {
                consumer.subscribe(topic, filter.substring("tags:".length()));
            }
        }
        consumer.start();
        if (kind.equals("assign")) {
            Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
            consumer.assign(queues);
        }
        protocol.ready();
        AtomicBoolean stopping = new AtomicBoolean();
        Thread poller = new Thread(() -> {
            // an interruption would be lost in poll
            while (!stopping.get()) {
                consumer.poll(100).forEach(this::tell);
            }
        });
        poller.start();
        awaitStop();
        stopping.set(true);
        poller.join();
        // by itself it commits every five seconds, and not when it stops
        consumer.commitSync();
        QuickStop.run(consumer::shutdown);
    }

    private static void awaitStop() throws Exception {
        Protocol.requests().forEach(line -> {});
    }

    private void tell(MessageExt message) {
        CRC32 crc = new CRC32();
        crc.update(message.getBody());
        protocol.lineWhenReady(message.getQueueId() + " " + message.getQueueOffset() + " "
            + crc.getValue() + " " + message.getReconsumeTimes());
    }
}
