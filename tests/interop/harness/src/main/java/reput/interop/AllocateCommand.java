package reput.interop;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * RocketMQ's allocation strategies, asked with: strategy, whether to sort first, client id,
 * client ids, queues, with tabs between them.
 *
 * <p>Strategies have their argument after a bar: {@code CONSISTENT_HASH|10},
 * {@code MACHINE_ROOM|r1,r2}, {@code MACHINE_ROOM_NEARBY|AVG}, {@code CONFIG|queue,queue}. A queue is
 * {@code topic:broker:id}. "Nearby" takes what stands before the first hyphen of a broker or client
 * for its room. The answer is the queues, or REFUSED where RocketMQ throws.
 */
final class AllocateCommand {
    private static final String GROUP = "group";

    private AllocateCommand() {
    }

    static String answer(String question) {
        String[] words = question.split("\t", -1);
        List<String> clients = items(words[3]);
        List<MessageQueue> queues = queues(words[4]);
        if (Boolean.parseBoolean(words[1])) {
            Collections.sort(queues);
            Collections.sort(clients);
        }
        List<MessageQueue> found;
        try {
            found = strategy(words[0]).allocate(GROUP, words[2], queues, clients);
        } catch (IllegalArgumentException e) {
            return "REFUSED";
        }
        return found.stream()
            .map(queue ->
                queue.getTopic() + ":" + queue.getBrokerName() + ":" + queue.getQueueId())
            .collect(Collectors.joining(","));
    }

    private static AllocateMessageQueueStrategy strategy(String text) {
        String[] parts = text.split("\\|", 2);
        String argument = parts.length > 1 ? parts[1] : "";
        return switch (parts[0]) {
            case "AVG" -> new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE" -> new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH" ->
                new AllocateMessageQueueConsistentHash(Integer.parseInt(argument));
            case "MACHINE_ROOM" -> {
                var strategy = new AllocateMessageQueueByMachineRoom();
                strategy.setConsumeridcs(Set.copyOf(items(argument)));
                yield strategy;
            }
            case "MACHINE_ROOM_NEARBY" ->
                new AllocateMachineRoomNearby(strategy(argument), new BeforeHyphen());
            case "CONFIG" -> {
                var strategy = new AllocateMessageQueueByConfig();
                strategy.setMessageQueueList(queues(argument));
                yield strategy;
            }
            default -> throw new IllegalStateException(text);
        };
    }

    private static List<String> items(String text) {
        return text.isEmpty() ? new ArrayList<>() : new ArrayList<>(List.of(text.split(",", -1)));
    }

    private static List<MessageQueue> queues(String text) {
        List<MessageQueue> queues = new ArrayList<>();
        for (String item : items(text)) {
            String[] parts = item.split(":", -1);
            queues.add(new MessageQueue(parts[0], parts[1], Integer.parseInt(parts[2])));
        }
        return queues;
    }

    private record BeforeHyphen() implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return room(queue.getBrokerName());
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return room(clientId);
        }

        private static String room(String name) {
            return name.contains("-") ? name.substring(0, name.indexOf('-')) : "";
        }
    }
}
