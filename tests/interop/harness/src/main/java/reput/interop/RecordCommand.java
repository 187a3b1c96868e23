package reput.interop;

import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.List;
import java.util.concurrent.Callable;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;

/**
 * {@code CommitLog.checkMessageAndReturnSize}: how the broker's reput reads bytes of the log.
 *
 * <p>Questions: whether to check the body's CRC, and the bytes up to the end of the file. The answer
 * is the size and whether it is a success; of a message also the hash of its topic, queue, queue
 * offset, physical offset, tagsCode and store time.
 */
record RecordCommand(CommitLog log) {
    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return () -> {
            DefaultMessageStore store = OpenStore.unstarted(arguments.get(0));
            RecordCommand command = new RecordCommand(store.getCommitLog());
            List<String> questions = arguments.subList(1, arguments.size());
            return new QuestionsCommand(questions, command::answer, protocol).call();
        };
    }

    private String answer(String question) {
        String[] words = question.split(" ");
        return answer(
            ByteBuffer.wrap(HexFormat.of().parseHex(words[1])), Boolean.parseBoolean(words[0]));
    }

    private String answer(ByteBuffer bytes, boolean checkCrc) {
        DispatchRequest found;
        try {
            found = log.checkMessageAndReturnSize(bytes, checkCrc, false, true);
        } catch (OutOfMemoryError e) {
            // it reserves what a damaged size says
            return "-1 false";
        }
        String answer = found.getMsgSize() + " " + found.isSuccess();
        if (!found.isSuccess() || found.getMsgSize() <= 0) {
            return answer;
        }
        return answer + " " + found.getTopic().hashCode() + " " + found.getQueueId() + " "
            + found.getConsumeQueueOffset() + " " + found.getCommitLogOffset() + " "
            + found.getTagsCode() + " " + found.getStoreTimestamp();
    }
}
