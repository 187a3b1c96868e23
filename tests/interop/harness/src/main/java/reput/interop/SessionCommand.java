package reput.interop;

import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Map;
import java.util.concurrent.Callable;

/**
 * Carries out other subcommands one after the other in this process: for each line, a subcommand
 * and its arguments with tabs between them, what it prints.
 *
 * <p>A client's start, and the loading and compiling of what it uses, take most of the time of a
 * short command. One that fails is answered by one JSON object with its stack trace.
 */
record SessionCommand(Protocol protocol) implements Callable<Void> {
    @Override
    public Void call() throws Exception {
        for (String line : Protocol.requests()) {
            try {
                Harness.parse(line.split("\t", -1), protocol).call();
            } catch (Exception e) {
                StringWriter trace = new StringWriter();
                e.printStackTrace(new PrintWriter(trace));
                protocol.json(Map.of("failed", trace.toString()));
            }
        }
        return null;
    }
}
