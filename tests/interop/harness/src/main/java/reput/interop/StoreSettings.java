package reput.interop;

import java.io.IOException;
import java.io.Reader;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * The settings of one store: where they come from and which wins.
 *
 * <p>Later wins: {@link #RUNTIME}, then the store's {@code broker.conf} (or {@link #SMALL_FILES}
 * when it has none), then the command line. A store with a {@code broker.conf} gets RocketMQ's own
 * default for whatever that file leaves out, because its files were written under that default.
 */
final class StoreSettings {
    /** Small files, so that a few thousand messages already roll over. They shape the store. */
    private static final Map<String, String> SMALL_FILES = Map.of(
        "mappedFileSizeCommitLog", "1048576",
        "mappedFileSizeConsumeQueue", "20000",
        "mappedFileSizeConsumeQueueExt", "49152",
        "mapperFileSizeBatchConsumeQueue", "9200",
        "maxHashSlotNum", "5000",
        "maxIndexNum", "20000");

    /**
     * What a test needs and no file shows: no fixed ports, no timer wheel's 140 MB, no pop service
     * that polls and takes seconds to stop, nothing deleted for age or a well-filled disk (golden
     * files are old, CI disks are full), no request refused because the machine is slow. A broker
     * of 5.3.3 flushes its transaction metrics for the first time after this interval, and until
     * then keeps a core busy with looking at the clock.
     */
    private static final Map<String, String> RUNTIME = Map.of(
        "haListenPort", "0",
        "timerWheelEnable", "false",
        "popConsumerFSServiceInit", "false",
        "fileReservedTime", "876000",
        "cleanFileForciblyEnable", "false",
        "osPageCacheBusyTimeOutMills", "60000",
        "brokerFastFailureEnable", "false",
        "transactionMetricFlushInterval", "100",
        "brokerName", "interop",
        "brokerIP1", "127.0.0.1");

    private final Path store;
    private final Map<String, String> merged = new TreeMap<>(RUNTIME);
    private final Map<String, String> given = new TreeMap<>();

    private StoreSettings(Path store) {
        this.store = store;
    }

    /** Reads {@code STORE_DIR key=value...}; an unknown key is an error, not a silent default. */
    static StoreSettings parse(List<String> arguments) throws IOException {
        StoreSettings settings = new StoreSettings(Path.of(arguments.get(0)).toAbsolutePath());
        if (Files.exists(settings.confFile())) {
            settings.merged.putAll(settings.readConf());
        } else {
            settings.merged.putAll(SMALL_FILES);
        }
        for (String pair : arguments.subList(1, arguments.size())) {
            int equals = pair.indexOf('=');
            if (equals < 1) {
                throw new IllegalArgumentException("not key=value: " + pair);
            }
            String key = pair.substring(0, equals);
            if (!hasSetter(BrokerConfig.class, key) && !hasSetter(MessageStoreConfig.class, key)) {
                throw new IllegalArgumentException("RocketMQ has no setting " + key);
            }
            settings.given.put(key, pair.substring(equals + 1));
        }
        settings.merged.putAll(settings.given);
        return settings;
    }

    /** Leaves a {@code broker.conf} for whoever opens the store next, unless it has one. */
    void writeConfIfMissing() throws IOException {
        if (Files.exists(confFile())) {
            return;
        }
        Map<String, String> conf = new TreeMap<>(SMALL_FILES);
        conf.putAll(given);
        List<String> lines = new ArrayList<>();
        conf.forEach((key, value) -> lines.add(key + "=" + value));
        Files.createDirectories(store);
        Files.write(confFile(), lines, StandardCharsets.UTF_8);
    }

    BrokerConfig brokerConfig() {
        BrokerConfig config = new BrokerConfig();
        MixAll.properties2Object(properties(), config);
        return config;
    }

    MessageStoreConfig storeConfig() {
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(properties(), config);
        config.setStorePathRootDir(store.toString());
        return config;
    }

    private Properties properties() {
        Properties properties = new Properties();
        properties.putAll(merged);
        return properties;
    }

    private Path confFile() {
        return store.resolve("broker.conf");
    }

    private Map<String, String> readConf() throws IOException {
        Properties properties = new Properties();
        try (Reader reader = Files.newBufferedReader(confFile(), StandardCharsets.UTF_8)) {
            properties.load(reader);
        }
        Map<String, String> conf = new TreeMap<>();
        properties.stringPropertyNames().forEach(key -> conf.put(key, properties.getProperty(key)));
        return conf;
    }

    /** As {@code MixAll.properties2Object} looks for it: some setters go on with a small letter. */
    private static boolean hasSetter(Class<?> type, String key) {
        String setter = "set" + Character.toUpperCase(key.charAt(0)) + key.substring(1);
        for (Method method : type.getMethods()) {
            if (method.getName().equals(setter) || method.getName().equals("set" + key)) {
                return true;
            }
        }
        return false;
    }
}
