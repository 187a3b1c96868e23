package reput.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.Callable;

/**
 * A broker with its own name server that lives until {@code stop} or the end of stdin.
 *
 * <p>The end of stdin counts as a stop so that no broker outlives the test run that started it.
 */
record BrokerCommand(StoreSettings settings, List<TopicSpec> topics, Protocol protocol)
    implements Callable<Void> {

    /** One topic to create. */
    record TopicSpec(String name, int queues) {
        static TopicSpec parse(String text) {
            int colon = text.lastIndexOf(':');
            if (colon < 1) {
                throw new IllegalArgumentException("not topic:queues: " + text);
            }
            return new TopicSpec(
                text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
        }
    }

    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        int separator = arguments.indexOf("--");
        List<String> store = separator < 0 ? arguments : arguments.subList(0, separator);
        List<TopicSpec> topics = separator < 0
            ? List.of()
            : arguments.subList(separator + 1, arguments.size()).stream()
                .map(TopicSpec::parse)
                .toList();
        return () -> new BrokerCommand(StoreSettings.parse(store), topics, protocol).call();
    }

    @Override
    public Void call() throws Exception {
        settings.writeConfIfMissing();
        LocalBroker broker = new LocalBroker(settings);
        broker.start(topics);
        protocol.line("READY namesrv=" + broker.nameServerAddress());
        waitForStop();
        broker.stop();
        protocol.line("STOPPED");
        return null;
    }

    private static void waitForStop() throws IOException {
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            if (line.strip().equals("stop")) {
                return;
            }
        }
    }
}
