package reput.interop;

import java.util.stream.Collectors;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.MappedFileQueue;
import org.apache.rocketmq.store.MultiPathMappedFileQueue;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Which files RocketMQ takes for the CommitLog's.
 *
 * <p>Questions: {@code storePathCommitLog|readOnlyCommitLogStorePaths}; each is answered with the files'
 * paths and bars between, in the log's order.
 */
record PathsCommand(int fileSize) implements QuestionsCommand.Answering {
    @Override
    public String answer(String question) {
        String[] parts = question.split("\\|", -1);
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathCommitLog(parts[0]);
        config.setReadOnlyCommitLogStorePaths(parts[1]);
        MappedFileQueue queue = queue(config);
        if (!queue.load()) {
            throw new IllegalStateException("the files could not be loaded");
        }
        return queue.getMappedFiles().stream()
            .map(file -> file.getFileName())
            .collect(Collectors.joining("|"));
    }

    /** As the constructor of {@code CommitLog} chooses. */
    private MappedFileQueue queue(MessageStoreConfig config) {
        String path = config.getStorePathCommitLog();
        if (path.contains(MixAll.MULTI_PATH_SPLITTER)) {
            return new MultiPathMappedFileQueue(config, fileSize, null, null);
        }
        return new MappedFileQueue(path, fileSize, null);
    }
}
