package reput.interop;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/**
 * RocketMQ's codec of frames, asked with words that tabs separate, texts and bytes as hex digits.
 *
 * <ul>
 * <li>{@code encode TYPE CODE OPAQUE FLAG REMARK EXT BODY}: the frame; EXT is {@code key=value}
 *     pairs with commas.
 * <li>{@code decode FRAME}: the words of {@code encode}, the pairs sorted.
 * </ul>
 */
final class FrameCommand {
    private static final HexFormat HEX = HexFormat.of();

    private FrameCommand() {
    }

    static String answer(String question) throws Exception {
        String[] words = question.split("\t", -1);
        return words[0].equals("encode") ? encode(words) : decode(words[1]);
    }

    private static String encode(String[] words) {
        RemotingCommand command =
            RemotingCommand.createRequestCommand(Integer.parseInt(words[2]), null);
        command.setSerializeTypeCurrentRPC(SerializeType.valueOf(words[1]));
        command.setOpaque(Integer.parseInt(words[3]));
        command.setFlag(Integer.parseInt(words[4]));
        command.setRemark(words[5].isEmpty() ? null : text(words[5]));
        HashMap<String, String> ext = new HashMap<>();
        for (String pair : words[6].isEmpty() ? new String[0] : words[6].split(",")) {
            String[] sides = pair.split("=", -1);
            ext.put(text(sides[0]), text(sides[1]));
        }
        command.setExtFields(ext);
        command.setBody(words[7].isEmpty() ? null : HEX.parseHex(words[7]));
        ByteBuffer frame = command.encode();
        byte[] data = new byte[frame.remaining()];
        frame.get(data);
        return HEX.formatHex(data);
    }

    private static String decode(String frame) throws Exception {
        ByteBuffer data = ByteBuffer.wrap(HEX.parseHex(frame));
        data.getInt();
        RemotingCommand found = RemotingCommand.decode(data.slice());
        Map<String, String> ext =
            found.getExtFields() == null ? Map.of() : new TreeMap<>(found.getExtFields());
        String pairs = ext.entrySet().stream()
            .map(pair -> hex(pair.getKey()) + "=" + hex(pair.getValue()))
            .collect(Collectors.joining(","));
        byte[] body = found.getBody() == null ? new byte[0] : found.getBody();
        return String.join("\t", "encode", found.getSerializeTypeCurrentRPC().name(),
            String.valueOf(found.getCode()), String.valueOf(found.getOpaque()),
            String.valueOf(found.getFlag()),
            found.getRemark() == null ? "" : hex(found.getRemark()), pairs, HEX.formatHex(body));
    }

    private static String text(String hex) {
        return new String(HEX.parseHex(hex), StandardCharsets.UTF_8);
    }

    private static String hex(String text) {
        return HEX.formatHex(text.getBytes(StandardCharsets.UTF_8));
    }
}
