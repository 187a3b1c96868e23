package reput.interop;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.Callable;

/**
 * A broker with its own name server that lives until {@code stop} or the end of stdin.
 *
 * <p>Until then it takes orders, a line each with tabs between words, and says {@code DONE}, or
 * {@code REFUSED} and why:
 *
 * <ul>
 * <li>{@code topic NAME:QUEUES [QUEUE_TYPE]}: create a topic or update it;
 * <li>{@code delete NAME}: delete a topic;
 * <li>{@code filter TOPIC GROUP EXPRESSION}: register a consumer's SQL92 expression, and write the
 *     registrations to disk, which a broker does every ten seconds.
 * </ul>
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
        takeOrders(broker);
        broker.stop();
        protocol.line("STOPPED");
        return null;
    }

    private void takeOrders(LocalBroker broker) throws IOException {
        for (String line : Protocol.requests()) {
            if (line.strip().equals("stop")) {
                return;
            }
            try {
                obey(broker, line.split("\t"));
                protocol.line("DONE");
            } catch (Exception e) {
                protocol.line("REFUSED " + e.getMessage());
            }
        }
    }

    private static void obey(LocalBroker broker, String[] words) throws Exception {
        switch (words[0]) {
            case "topic" -> broker.updateTopic(
                TopicSpec.parse(words[1]), words.length > 2 ? words[2] : null);
            case "delete" -> broker.deleteTopic(words[1]);
            case "filter" -> broker.registerFilter(words[1], words[2], words[3]);
            default -> throw new IllegalArgumentException("no such order: " + words[0]);
        }
    }
}
