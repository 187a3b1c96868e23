package reput.interop;

import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.concurrent.Callable;

/**
 * What Java makes of bytes: {@code new String(bytes, UTF_8)}, its length and its hash.
 *
 * <p>Tag codes and index keys are hashes of such strings, malformed input included, so a
 * re-implementation has to replace the same bytes by the same characters.
 */
record StringsCommand(Protocol protocol) implements Callable<Void> {
    @Override
    public Void call() throws Exception {
        for (String line : Protocol.requests()) {
            String text =
                new String(HexFormat.of().parseHex(line.strip()), StandardCharsets.UTF_8);
            protocol.line(text.length() + " " + text.hashCode());
        }
        return null;
    }
}
