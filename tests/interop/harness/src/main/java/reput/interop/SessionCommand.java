package reput.interop;

import com.alibaba.fastjson2.JSON;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.Map;
import java.util.concurrent.Callable;

/**
 * Carries out other subcommands one after the other in this process: for each line, a JSON array
 * of a subcommand and its arguments, the one JSON object that it prints.
 *
 * <p>The start of a JVM, and the loading and compiling of what RocketMQ uses, take most of the time of
 * a short command. One that fails is answered by one JSON object with its stack trace.
 */
record SessionCommand(Protocol protocol) implements Callable<Void> {
    @Override
    public Void call() throws Exception {
        for (String line : Protocol.requests()) {
            try {
                Harness.parse(JSON.parseObject(line, String[].class), protocol).call();
            } catch (Exception e) {
                StringWriter trace = new StringWriter();
                e.printStackTrace(new PrintWriter(trace));
                protocol.json(Map.of("failed", trace.toString()));
            }
        }
        return null;
    }
}
