package reput.interop;

import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

/**
 * What Java makes of bytes, in hex: {@code new String(bytes, UTF_8)}, its length and its hash.
 *
 * <p>Tag codes and index keys are hashes of such strings, malformed input included, so a
 * re-implementation has to replace the same bytes by the same characters.
 */
final class StringsCommand {
    private StringsCommand() {
    }

    static String answer(String bytes) {
        String text = new String(HexFormat.of().parseHex(bytes), StandardCharsets.UTF_8);
        return text.length() + " " + text.hashCode();
    }
}
