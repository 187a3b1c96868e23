package reput.interop;

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.List;

/**
 * Two fingerprints of a set of messages: with and without the place of each.
 *
 * <p>{@link #placed()} says that every message is where it was; {@link #bodies()} can be computed by
 * a sender, which does not know where the broker will put its messages.
 */
final class Digests {
    private record Entry(String key, byte[] body) {
    }

    private final List<Entry> entries = new ArrayList<>();

    void add(int queueId, long queueOffset, byte[] body) {
        entries.add(new Entry("%03d-%012d".formatted(queueId, queueOffset), body));
    }

    /** Adds a message whose place is not known. */
    void add(byte[] body) {
        entries.add(new Entry("", body));
    }

    int count() {
        return entries.size();
    }

    /** SHA-256 over key + body, sorted by key: the rule of the golden stores' README. */
    String placed() {
        MessageDigest digest = sha256();
        entries.stream().sorted(Comparator.comparing(Entry::key)).forEach(entry -> {
            digest.update(entry.key().getBytes(StandardCharsets.US_ASCII));
            digest.update(entry.body());
        });
        return HexFormat.of().formatHex(digest.digest());
    }

    /** SHA-256 over the sorted hexadecimal SHA-256 of each body. */
    String bodies() {
        MessageDigest digest = sha256();
        entries.stream()
            .map(entry -> HexFormat.of().formatHex(sha256().digest(entry.body())))
            .sorted()
            .forEach(hash -> digest.update(hash.getBytes(StandardCharsets.US_ASCII)));
        return HexFormat.of().formatHex(digest.digest());
    }

    private static MessageDigest sha256() {
        try {
            return MessageDigest.getInstance("SHA-256");
        } catch (NoSuchAlgorithmException e) {
            throw new AssertionError("every JDK has SHA-256", e);
        }
    }
}
