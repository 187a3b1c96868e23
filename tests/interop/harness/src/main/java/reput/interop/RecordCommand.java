package reput.interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * {@code CommitLog.checkMessageAndReturnSize}: what the broker's reput makes of bytes of the log.
 *
 * <p>Lines: whether to check the body's CRC, and the bytes up to the end of the file. The answer is
 * the size and whether it is a success; of a message also the hash of its topic, queue, queue
 * offset, physical offset, tagsCode and store time.
 */
record RecordCommand(Protocol protocol, CommitLog log) implements Callable<Void> {
    static Callable<Void> parse(String directory, Protocol protocol) {
        return () -> {
            MessageStoreConfig config = new MessageStoreConfig();
            config.setStorePathRootDir(directory);
            // never started: the log asks it for settings alone
            DefaultMessageStore store = new DefaultMessageStore(
                config, new BrokerStatsManager("harness", false), null, new BrokerConfig(),
                new ConcurrentHashMap<>());
            return new RecordCommand(protocol, store.getCommitLog()).call();
        };
    }

    @Override
    public Void call() throws Exception {
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.strip().split(" ");
            ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(words[1]));
            protocol.line(answer(bytes, Boolean.parseBoolean(words[0])));
        }
        return null;
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
