package reput.interop;

import java.util.List;
import java.util.concurrent.Callable;

/**
 * Does once, in one JVM, what the other subcommands do in JVMs of their own.
 *
 * <p>A JVM that writes an archive of its classes when it ends (rocketmq.py starts it) has loaded
 * those of a broker, of its clients and of a store alone by then.
 */
record WarmCommand(String store, Protocol protocol) implements Callable<Void> {
    private static final String TOPIC = "Warm";
    private static final String MESSAGES = "100";

    @Override
    public Void call() throws Exception {
        StoreSettings settings = StoreSettings.parse(List.of(store));
        settings.writeConfIfMissing();
        LocalBroker broker = new LocalBroker(settings);
        broker.start(List.of(new BrokerCommand.TopicSpec(TOPIC, 2)));
        String nameServer = broker.nameServerAddress();
        SendCommand.parse(List.of(nameServer, TOPIC, MESSAGES, "1", "0"), protocol).call();
        DrainCommand.parse(List.of(nameServer, TOPIC), protocol).call();
        broker.stop();
        BootCommand.parse(List.of(store), protocol).call();
        return null;
    }
}
