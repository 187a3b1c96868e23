package reput.interop;

import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.rocketmq.store.ConsumeQueueExt;

/**
 * RocketMQ's ConsumeQueueExt by itself: DIRECTORY is consumequeue_ext, the queue is topic/0.
 *
 * <p>Questions: {@code put TAGS_CODE TIME BITMAP} (hex or "-") answers the address, {@code get ADDRESS}
 * the unit or "-", {@code recover}, {@code min ADDRESS} and {@code max ADDRESS} truncate, and like
 * {@code end} answer the greatest address. Files are flushed before the answer.
 */
record ExtCommand(ConsumeQueueExt ext, List<String> questions, Protocol protocol)
    implements Callable<Void> {
    static ExtCommand parse(List<String> arguments, Protocol protocol) {
        ConsumeQueueExt ext = new ConsumeQueueExt(
            "topic", 0, arguments.get(0), Integer.parseInt(arguments.get(1)), 0);
        return new ExtCommand(ext, arguments.subList(2, arguments.size()), protocol);
    }

    @Override
    public Void call() throws Exception {
        if (!ext.load()) {
            throw new IllegalStateException("the files could not be loaded");
        }
        List<String> answers =
            QuestionsCommand.answers(questions, question -> answer(question.split(" ")));
        ext.flush(0);
        protocol.json(Map.of("answers", answers));
        return null;
    }

    private String answer(String[] words) {
        switch (words[0]) {
            case "put":
                byte[] bitMap = words[3].equals("-") ? null : HexFormat.of().parseHex(words[3]);
                return String.valueOf(ext.put(new ConsumeQueueExt.CqExtUnit(
                    Long.parseLong(words[1]), Long.parseLong(words[2]), bitMap)));
            case "get":
                ConsumeQueueExt.CqExtUnit unit = ext.get(Long.parseLong(words[1]));
                if (unit == null) {
                    return "-";
                }
                byte[] found = unit.getFilterBitMap();
                return unit.getTagsCode() + " " + unit.getMsgStoreTime() + " "
                    + (found == null ? "-" : HexFormat.of().formatHex(found));
            case "recover":
                ext.recover();
                break;
            case "min":
                ext.truncateByMinAddress(Long.parseLong(words[1]));
                break;
            case "max":
                ext.truncateByMaxAddress(Long.parseLong(words[1]));
                break;
            case "end":
                break;
            default:
                throw new IllegalArgumentException(words[0]);
        }
        return String.valueOf(ext.getMaxAddress());
    }
}
