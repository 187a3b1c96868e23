package reput.interop;

import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;

/**
 * Opens a store with RocketMQ's {@link DefaultMessageStore} alone and reports what it found.
 *
 * <p>This is the shortest answer to "does RocketMQ accept these files, and where does it think each
 * queue ends".
 */
record BootCommand(StoreSettings settings, Protocol protocol) implements Callable<Void> {
    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return () -> new BootCommand(StoreSettings.parse(arguments), protocol).call();
    }

    @Override
    public Void call() throws Exception {
        OpenStore open = OpenStore.open(settings);
        Map<String, Object> report = report(open.store());
        report.put("dispatched", open.dispatched().get());
        report.put("clean", open.close());
        protocol.json(report);
        return null;
    }

    private static Map<String, Object> report(DefaultMessageStore store) {
        Map<String, Map<String, Map<String, Long>>> topics = new TreeMap<>();
        store.getConsumeQueueTable().forEach((topic, queues) ->
            queues.forEach((queueId, queue) ->
                topics.computeIfAbsent(topic, name -> new TreeMap<>())
                    .put(Integer.toString(queueId), report(queue))));
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("min_physical_offset", store.getMinPhyOffset());
        report.put("max_physical_offset", store.getMaxPhyOffset());
        report.put("confirm_offset", store.getConfirmOffset());
        report.put("topics", topics);
        return report;
    }

    private static Map<String, Long> report(ConsumeQueueInterface queue) {
        Map<String, Long> report = new LinkedHashMap<>();
        report.put("min", queue.getMinOffsetInQueue());
        report.put("max", queue.getMaxOffsetInQueue());
        report.put("max_physic_offset", queue.getMaxPhysicOffset());
        return report;
    }
}
