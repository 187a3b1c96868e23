package reput.interop;

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerPathConfigHelper;
import org.apache.rocketmq.broker.filter.CommitLogDispatcherCalcBitMap;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.config.StorePathConfigHelper;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store with RocketMQ's {@link DefaultMessageStore} alone and reports what it found.
 *
 * <p>This is the shortest answer to "does RocketMQ accept these files, and where does it think each
 * queue ends". Loading recovers: what RocketMQ would truncate or dispatch again, it does here too.
 */
record BootCommand(StoreSettings settings, Protocol protocol) implements Callable<Void> {
    private static final Duration DISPATCH_LIMIT = Duration.ofSeconds(120);

    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return () -> new BootCommand(StoreSettings.parse(arguments), protocol).call();
    }

    @Override
    public Void call() throws Exception {
        MessageStoreConfig storeConfig = settings.storeConfig();
        BrokerConfig brokerConfig = settings.brokerConfig();
        ConsumerFilterManager filters = readFilters(brokerConfig, storeConfig);
        DefaultMessageStore store = new DefaultMessageStore(
            storeConfig,
            new BrokerStatsManager(brokerConfig.getBrokerClusterName(), false),
            (topic, queueId, offset, tagsCode, storeTime, bitMap, properties) -> { },
            brokerConfig,
            readTopics(storeConfig.getStorePathRootDir()));
        if (filters != null) {
            store.getDispatcherList()
                .addFirst(new CommitLogDispatcherCalcBitMap(brokerConfig, filters));
        }
        boolean loaded = store.load();
        if (!loaded) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        Waiting.until(
            "dispatch of the whole commit log",
            DISPATCH_LIMIT,
            () -> store.dispatchBehindBytes() == 0);
        Map<String, Object> report = report(store);
        store.shutdown();
        Path abort = Path.of(StorePathConfigHelper.getAbortFile(storeConfig.getStorePathRootDir()));
        report.put("clean", !Files.exists(abort));
        protocol.json(report);
        return null;
    }

    /** The store asks its topics' attributes: a BatchCQ topic has another kind of queue. */
    private static ConcurrentMap<String, TopicConfig> readTopics(String root) throws Exception {
        Path file = Path.of(BrokerPathConfigHelper.getTopicConfigPath(root));
        if (!Files.exists(file)) {
            return new ConcurrentHashMap<>();
        }
        String text = Files.readString(file, StandardCharsets.UTF_8);
        return TopicConfigSerializeWrapper.fromJson(text, TopicConfigSerializeWrapper.class)
            .getTopicConfigTable();
    }

    /**
     * Reads the consumers' expressions when the store keeps their bit maps; null when it does not.
     *
     * <p>They come out of a broker that is never started, because only it sizes the Bloom filter by
     * its settings (and tells the store the size).
     */
    private static ConsumerFilterManager readFilters(
        BrokerConfig brokerConfig, MessageStoreConfig storeConfig) {
        if (!brokerConfig.isEnableCalcFilterBitMap()) {
            return null;
        }
        BrokerController unstarted = new BrokerController(
            brokerConfig, new NettyServerConfig(), null, storeConfig);
        ConsumerFilterManager filters = unstarted.getConsumerFilterManager();
        if (!filters.load()) {
            throw new IllegalStateException("the consumers' filters do not load");
        }
        return filters;
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
