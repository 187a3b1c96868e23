package reput.interop;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.admin.ConsumeStats;

/**
 * Consumes so many messages from the front of some queues and commits, as a member of a group.
 *
 * <p>It answers with the broker's GET_CONSUME_STATS of the group: by {@code topic:queue}, the
 * broker's and the group's offset.
 */
@SuppressWarnings("deprecation")
record CommitCommand(
    String nameServer, String topic, String group, Map<Integer, Long> counts, Protocol protocol)
    implements Callable<Void> {

    private static final int PULL_MAX = 32;
    private static final Duration LIMIT = Duration.ofSeconds(30);

    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        Map<Integer, Long> counts = new LinkedHashMap<>();
        for (String text : arguments.subList(3, arguments.size())) {
            String[] parts = text.split(":");
            counts.put(Integer.parseInt(parts[0]), Long.parseLong(parts[1]));
        }
        return new CommitCommand(
            arguments.get(0), arguments.get(1), arguments.get(2), counts, protocol);
    }

    @Override
    public Void call() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.start();
        try {
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
                if (counts.containsKey(queue.getQueueId())) {
                    commit(consumer, queue, counts.get(queue.getQueueId()));
                }
            }
            protocol.json(stats(consumer));
        } finally {
            QuickStop.run(consumer::shutdown);
        }
        return null;
    }

    private static void commit(DefaultMQPullConsumer consumer, MessageQueue queue, long count)
        throws Exception {
        long position = consumer.minOffset(queue);
        long end = position + count;
        while (position < end) {
            int most = (int) Math.min(PULL_MAX, end - position);
            PullResult result = consumer.pull(queue, "*", position, most);
            if (result.getNextBeginOffset() <= position) {
                throw new IllegalStateException(queue + " has fewer messages: " + result);
            }
            position = result.getNextBeginOffset();
        }
        long committed = position;
        consumer.updateConsumeOffset(queue, committed);
        consumer.getOffsetStore().persist(queue);
        // a commit is one-way
        Waiting.until(
            "commit of " + queue,
            LIMIT,
            () -> consumer.getOffsetStore().readOffset(queue, ReadOffsetType.READ_FROM_STORE)
                == committed);
    }

    private Map<String, Map<String, Long>> stats(DefaultMQPullConsumer consumer) throws Exception {
        MQClientInstance client = consumer.getDefaultMQPullConsumerImpl()
            .getRebalanceImpl().getmQClientFactory();
        Map<String, Map<String, Long>> found = new LinkedHashMap<>();
        client.updateTopicRouteInfoFromNameServer(topic);
        Set<String> brokers = consumer.fetchSubscribeMessageQueues(topic).stream()
            .map(MessageQueue::getBrokerName)
            .collect(Collectors.toSet());
        for (String broker : brokers) {
            ConsumeStats stats = client.getMQClientAPIImpl().getConsumeStats(
                client.findBrokerAddressInPublish(broker), group, LIMIT.toMillis());
            stats.getOffsetTable().forEach((queue, offsets) -> {
                Map<String, Long> values = new LinkedHashMap<>();
                values.put("broker", offsets.getBrokerOffset());
                values.put("committed", offsets.getConsumerOffset());
                found.put(queue.getTopic() + ":" + queue.getQueueId(), values);
            });
        }
        return found;
    }
}
