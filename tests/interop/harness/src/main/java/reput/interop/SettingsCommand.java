package reput.interop;

import java.io.ByteArrayInputStream;
import java.lang.reflect.Method;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.StringJoiner;
import java.util.concurrent.Callable;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * What a broker makes of a {@code broker.conf}: {@code Properties.load}, {@code MixAll.properties2Object},
 * and then its getters.
 *
 * <p>Questions: the file in hexadecimal digits. The answer is {@code refused} where it cannot be loaded.
 * Otherwise it has a word for each of the names that this release has, {@code name:value}, where a text
 * is UTF-16 in hexadecimal digits. {@code levels:} are the delay levels in milliseconds with commas
 * between, nothing where a broker would not start.
 */
record SettingsCommand(List<String> names, DefaultMessageStore store)
    implements QuestionsCommand.Answering {
    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return () -> {
            DefaultMessageStore store = OpenStore.unstarted(arguments.get(0));
            List<String> names = List.of(arguments.get(1).split(","));
            return new QuestionsCommand(
                arguments.subList(2, arguments.size()), new SettingsCommand(names, store), protocol).call();
        };
    }

    @Override
    public String answer(String question) throws Exception {
        Properties stated = new Properties();
        try {
            stated.load(new ByteArrayInputStream(HexFormat.of().parseHex(question)));
        } catch (IllegalArgumentException e) {
            return "refused";
        }
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        BrokerConfig brokerConfig = new BrokerConfig();
        MixAll.properties2Object(stated, brokerConfig);
        MixAll.properties2Object(stated, storeConfig);
        StringJoiner words = new StringJoiner(" ");
        for (String name : names) {
            for (Object config : new Object[] {storeConfig, brokerConfig}) {
                Method getter = getter(config.getClass(), name);
                if (getter != null) {
                    words.add(name + ":" + spelled(getter.invoke(config)));
                }
            }
        }
        return words.add("levels:" + levels(storeConfig.getMessageDelayLevel())).toString();
    }

    private static Method getter(Class<?> type, String name) {
        String capital = name.substring(0, 1).toUpperCase() + name.substring(1);
        for (String prefix : new String[] {"get", "is"}) {
            try {
                return type.getMethod(prefix + capital);
            } catch (NoSuchMethodException e) {
                continue;
            }
        }
        return null;
    }

    private static String spelled(Object value) {
        if (value == null) {
            return "";
        }
        if (!(value instanceof String)) {
            return value.toString();
        }
        StringBuilder digits = new StringBuilder();
        for (char unit : ((String) value).toCharArray()) {
            digits.append(HexFormat.of().toHexDigits(unit));
        }
        return digits.toString();
    }

    private String levels(String stated) {
        store.getMessageStoreConfig().setMessageDelayLevel(stated);
        if (!store.parseDelayLevel()) {
            return "";
        }
        StringJoiner levels = new StringJoiner(",");
        for (int level = 1; level <= stated.split(" ").length; level++) {
            levels.add(Long.toString(store.computeDeliverTimestamp(level, 0)));
        }
        return levels.toString();
    }
}
