package reput.interop;

import com.alibaba.fastjson2.JSON;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/**
 * The only reader of stdin and writer of stdout: a line per message, flushed at once, because a
 * test waits for it.
 *
 * <p>RocketMQ itself prints here and there to stdout and stderr. That goes to a file in the log
 * directory, so stdout stays parseable and stderr holds nothing but this process's own failure.
 */
final class Protocol {
    private final PrintStream out;
    private final CompletableFuture<Void> ready = new CompletableFuture<>();

    private Protocol(PrintStream out) {
        this.out = out;
    }

    /** Claims stdout for the protocol and sends what others print to {@code console.log}. */
    static Protocol takeStdout() throws IOException {
        PrintStream out = new PrintStream(
            new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
        Path directory = Path.of(
            System.getProperty("rocketmq.log.root.dir", System.getProperty("user.home")));
        Files.createDirectories(directory);
        PrintStream console = new PrintStream(
            new FileOutputStream(directory.resolve("console.log").toFile(), true),
            true,
            StandardCharsets.UTF_8);
        System.setOut(console);
        System.setErr(console);
        return new Protocol(out);
    }

    /** The lines of stdin, each of them a request, until its end. */
    static Iterable<String> requests() {
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        return () -> lines.lines().iterator();
    }

    /** Writes one line. A vanished reader is not an error: it has no one left to tell. */
    void line(String text) {
        out.print(text + "\n");
        out.flush();
    }

    /** Says that everything is set up. */
    void ready() {
        line("READY");
        ready.complete(null);
    }

    /** Writes one line after {@code READY}: a client's threads may have something to tell before. */
    void lineWhenReady(String text) {
        ready.join();
        line(text);
    }

    /** Writes one JSON object on one line, keys in the map's order. */
    void json(Map<String, ?> object) {
        line(JSON.toJSONString(object));
    }
}
