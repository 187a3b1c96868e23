package reput.interop;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.BrokerPathConfigHelper;
import org.apache.rocketmq.broker.filter.CommitLogDispatcherCalcBitMap;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.store.CommitLogDispatcher;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.config.StorePathConfigHelper;
import org.apache.rocketmq.store.index.IndexService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * RocketMQ's {@link DefaultMessageStore} alone, loaded, started and with its whole log dispatched.
 *
 * <p>Loading recovers: what RocketMQ would truncate or dispatch again, it does here too.
 *
 * @param statistics the store's
 * @param filters the consumers' expressions; null for a store without bit maps
 * @param dispatched how many messages the store gave its dispatchers since it was loaded
 * @param arrivals what the store told its listener since then
 * @param others the threads that are not the store's
 */
record OpenStore(
    DefaultMessageStore store,
    BrokerStatsManager statistics,
    ConsumerFilterManager filters,
    AtomicLong dispatched,
    Queue<Arrival> arrivals,
    Set<Thread> others) {
    private static final Duration DISPATCH_LIMIT = Duration.ofSeconds(120);
    private static final Duration CLOSE_LIMIT = Duration.ofSeconds(60);

    /**
     * Threads that RocketMQ never ends and that know no file: a timer of the statistics, that of a
     * broker which is not started, that of 5.5.1's RocksDB (closed by then), Netty's and Java's own.
     */
    private static final Pattern OTHER_THREAD = Pattern.compile(
        "(ThreadUtils-StatisticsManagerCleaner_|DefaultConsumerIdsChangeListener_|pool-"
            + "|NettyClient|globalEventExecutor-|process reaper).*");

    /** One call of a {@code MessageArrivingListener}; the offset is the message's end. */
    record Arrival(
        String topic, int queueId, long maxOffset, Long tagsCode, long storeTimestamp) { }

    /** A store that is never started, for what asks it for settings alone. */
    static DefaultMessageStore unstarted(String root) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        return new DefaultMessageStore(
            config, new BrokerStatsManager("harness", false), null, new BrokerConfig(),
            new ConcurrentHashMap<>());
    }

    static OpenStore open(StoreSettings settings) throws Exception {
        Set<Thread> others = Thread.getAllStackTraces().keySet();
        MessageStoreConfig storeConfig = settings.storeConfig();
        BrokerConfig brokerConfig = settings.brokerConfig();
        ConsumerFilterManager filters = readFilters(brokerConfig, storeConfig);
        Queue<Arrival> arrivals = new ConcurrentLinkedQueue<>();
        BrokerStatsManager statistics =
            new BrokerStatsManager(brokerConfig.getBrokerClusterName(), false);
        DefaultMessageStore store = new DefaultMessageStore(
            storeConfig,
            statistics,
            (topic, queueId, offset, tagsCode, storeTime, bitMap, properties) ->
                arrivals.add(new Arrival(topic, queueId, offset, tagsCode, storeTime)),
            brokerConfig,
            readTopics(storeConfig.getStorePathRootDir()));
        if (filters != null) {
            store.getDispatcherList()
                .addFirst(new CommitLogDispatcherCalcBitMap(brokerConfig, filters));
        }
        AtomicLong dispatched = new AtomicLong();
        store.getDispatcherList().addFirst(request -> dispatched.incrementAndGet());
        store.getDispatcherList().addLast(oneIndexFileAMillisecond(store));
        boolean loaded = store.load();
        if (!loaded) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        awaitDispatch(store);
        return new OpenStore(store, statistics, filters, dispatched, arrivals, others);
    }

    /**
     * Dispatches the log again, from its start; what was told to the listener meanwhile.
     *
     * <p>The dispatch of a recovery tells it nothing.
     */
    Queue<Arrival> dispatchAgain() throws Exception {
        arrivals.clear();
        Field field = DefaultMessageStore.class.getDeclaredField("reputMessageService");
        field.setAccessible(true);
        Object service = field.get(store);
        Method setter = service.getClass().getDeclaredMethod("setReputFromOffset", long.class);
        setter.setAccessible(true);
        setter.invoke(service, store.getMinPhyOffset());
        awaitDispatch(store);
        return arrivals;
    }

    /**
     * RocketMQ names an index file by the millisecond, and writes one over the other where it fills
     * a file within one. Files of the real size take seconds; those of tests are kept apart by this.
     */
    private static CommitLogDispatcher oneIndexFileAMillisecond(DefaultMessageStore store)
        throws ReflectiveOperationException {
        Field field = DefaultMessageStore.class.getDeclaredField("indexService");
        field.setAccessible(true);
        IndexService service = (IndexService) field.get(store);
        AtomicLong lastSize = new AtomicLong();
        return request -> {
            long size = service.getTotalSize();
            long now = System.currentTimeMillis();
            while (lastSize.get() != size && System.currentTimeMillis() == now) {
                Thread.onSpinWait();
            }
            lastSize.set(size);
        };
    }

    private static void awaitDispatch(DefaultMessageStore store) throws Exception {
        Waiting.until(
            "dispatch of the whole commit log",
            DISPATCH_LIMIT,
            () -> store.dispatchBehindBytes() == 0);
    }

    /**
     * Returns whether the store removed its abort file when it shut down.
     *
     * <p>None of its threads goes on in its files, which a test now reads, changes or removes.
     */
    boolean close() throws Exception {
        QuickStop.run(store::shutdown);
        statistics.shutdown();
        Waiting.until("end of " + threads(), CLOSE_LIMIT, () -> threads().isEmpty());
        // only the collector closes files that a store had mapped
        System.gc();
        Path abort = Path.of(StorePathConfigHelper.getAbortFile(
            store.getMessageStoreConfig().getStorePathRootDir()));
        return !Files.exists(abort);
    }

    /** The names of the store's threads that are left. */
    private Set<String> threads() {
        return Thread.getAllStackTraces().keySet().stream()
            .filter(thread -> !others.contains(thread))
            .map(Thread::getName)
            .filter(name -> !OTHER_THREAD.matcher(name).matches())
            .collect(Collectors.toSet());
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
        unstarted.getBrokerStatsManager().shutdown();
        ConsumerFilterManager filters = unstarted.getConsumerFilterManager();
        if (!filters.load()) {
            throw new IllegalStateException("the consumers' filters do not load");
        }
        return filters;
    }
}
