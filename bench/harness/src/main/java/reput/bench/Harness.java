package reput.bench;

import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.index.IndexService;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Times RocketMQ's {@code ReputMessageService} on a store whose consume queues are missing.
 *
 * <p>{@code cold} loads and starts the store, waits until all is dispatched, reports the entries
 * and ends: loading itself dispatches, as recovery. {@code warm} goes on: for each line
 * {@code pass} on stdin it drops the queues, sends the reput service back to the log's start and
 * times it; it ends with stdin. Every answer is one line of JSON on stdout. {@code live} appends to
 * an empty store instead, see {@link Live}.
 *
 * <p>A concurrent build of queues ({@code enableBuildConsumeQueueConcurrently=true}) goes on after
 * {@code dispatchBehindBytes()} is 0. A pass therefore ends when there are as many entries as
 * MESSAGES, or at the last entry when none was added for {@link #STALL_NANOS}. The caller must check
 * that the entries are complete.
 *
 * <p>The process ends without a shutdown of the store, which would wait for seconds: nothing of
 * this store is kept.
 */
public final class Harness {
    private static final String USAGE =
        "usage: Harness cold|warm|live STORE_DIR MESSAGES [key=value...]";
    private static final int SETTINGS_AT = 3;
    private static final long POLL_MILLIS = 1;
    /** After so long without a further entry a build counts as ended. */
    private static final long STALL_NANOS = 10_000_000_000L;

    /** A store without a broker that builds only consume queues; {@code key=value} overrides. */
    private static final Map<String, String> DEFAULTS = Map.of(
        "haListenPort", "0",
        "timerWheelEnable", "false",
        "checkCRCOnRecover", "false",
        "messageIndexEnable", "false",
        "fileReservedTime", "876000",
        "cleanFileForciblyEnable", "false");

    private final DefaultMessageStore store;
    private final long messageCount;
    private final PrintStream answers;

    private Harness(DefaultMessageStore store, long messageCount, PrintStream answers) {
        this.store = store;
        this.messageCount = messageCount;
        this.answers = answers;
    }

    /** Exit codes: 0 done, 1 failed (the stack trace is on stderr), 2 wrong arguments. */
    public static void main(String[] arguments) {
        PrintStream answers = new PrintStream(
            new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        int exitCode = 1;
        try {
            if (arguments.length < SETTINGS_AT || !arguments[0].matches("cold|warm|live")) {
                System.err.println(USAGE);
                exitCode = 2;
            } else {
                DefaultMessageStore store = create(arguments);
                Harness harness = new Harness(store, Long.parseLong(arguments[2]), answers);
                harness.load();
                switch (arguments[0]) {
                    case "warm" -> harness.serve();
                    case "live" -> new Live(store, answers).serve();
                    default -> { }
                }
                exitCode = 0;
            }
        } catch (Throwable e) {
            e.printStackTrace();
        }
        Runtime.getRuntime().halt(exitCode);
    }

    private static DefaultMessageStore create(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.putAll(DEFAULTS);
        for (int i = SETTINGS_AT; i < arguments.length; i++) {
            String[] pair = arguments[i].split("=", 2);
            properties.setProperty(pair[0], pair[1]);
        }
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        MixAll.properties2Object(properties, storeConfig);
        MixAll.properties2Object(properties, brokerConfig);
        storeConfig.setStorePathRootDir(arguments[1]);
        return new DefaultMessageStore(
            storeConfig,
            new BrokerStatsManager(brokerConfig.getBrokerClusterName(), false),
            (topic, queueId, offset, tagsCode, storeTime, bitMap, properties1) -> { },
            brokerConfig,
            new ConcurrentHashMap<>());
    }

    private void load() throws Exception {
        long began = System.nanoTime();
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        answer(awaitDispatch() - began, 0);
    }

    private void serve() throws Exception {
        BufferedReader requests = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            if (!line.equals("pass")) {
                throw new IllegalArgumentException("no such request: " + line);
            }
            pass();
        }
    }

    private void pass() throws Exception {
        store.getQueueStore().destroy();
        store.getConsumeQueueTable().clear();
        if (store.getMessageStoreConfig().isMessageIndexEnable()) {
            indexService().destroy();
        }
        long began = System.nanoTime();
        reputFrom(store.getCommitLog().getMinOffset());
        long dispatched = awaitDispatch();
        long flushing = System.nanoTime();
        for (Map<Integer, ConsumeQueueInterface> queues : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : queues.values()) {
                queue.flush(0);
            }
        }
        answer(dispatched - began, System.nanoTime() - flushing);
    }

    private void reputFrom(long physicalOffset) throws ReflectiveOperationException {
        Field field = DefaultMessageStore.class.getDeclaredField("reputMessageService");
        field.setAccessible(true);
        Object service = field.get(store);
        Method setter = field.getType().getDeclaredMethod("setReputFromOffset", long.class);
        setter.setAccessible(true);
        setter.invoke(service, physicalOffset);
    }

    private IndexService indexService() throws ReflectiveOperationException {
        Field field = DefaultMessageStore.class.getDeclaredField("indexService");
        field.setAccessible(true);
        return (IndexService) field.get(store);
    }

    /** Returns the time, by {@link System#nanoTime}, of the last entry. */
    private long awaitDispatch() throws InterruptedException {
        while (store.dispatchBehindBytes() != 0) {
            Thread.sleep(POLL_MILLIS);
        }
        long entries = entryCount();
        long grown = System.nanoTime();
        while (entries < messageCount && System.nanoTime() - grown < STALL_NANOS) {
            Thread.sleep(POLL_MILLIS);
            long found = entryCount();
            if (found != entries) {
                entries = found;
                grown = System.nanoTime();
            }
        }
        return grown;
    }

    private long entryCount() {
        long entries = 0;
        for (Map<Integer, ConsumeQueueInterface> queues : store.getConsumeQueueTable().values()) {
            for (ConsumeQueueInterface queue : queues.values()) {
                entries += queue.getMaxOffsetInQueue() - queue.getMinOffsetInQueue();
            }
        }
        return entries;
    }

    private void answer(long dispatchNanos, long flushNanos) {
        answers.println(String.format(
            Locale.ROOT,
            "{\"entries\":%d,\"dispatch_seconds\":%.6f,\"flush_seconds\":%.6f}",
            entryCount(), dispatchNanos / 1e9, flushNanos / 1e9));
    }
}
