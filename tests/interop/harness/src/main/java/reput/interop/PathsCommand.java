package reput.interop;

import java.util.concurrent.Callable;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.MappedFileQueue;
import org.apache.rocketmq.store.MultiPathMappedFileQueue;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Which files RocketMQ takes for the CommitLog's.
 *
 * <p>Lines: {@code storePathCommitLog|readOnlyCommitLogStorePaths}; each is answered with the files'
 * paths and bars between, in the log's order.
 */
record PathsCommand(Protocol protocol, int fileSize) implements Callable<Void> {
    @Override
    public Void call() throws Exception {
        for (String line : Protocol.requests()) {
            String[] parts = line.split("\\|", -1);
            MessageStoreConfig config = new MessageStoreConfig();
            config.setStorePathCommitLog(parts[0]);
            config.setReadOnlyCommitLogStorePaths(parts[1]);
            MappedFileQueue queue = queue(config);
            if (!queue.load()) {
                throw new IllegalStateException("the files could not be loaded");
            }
            protocol.line(queue.getMappedFiles().stream()
                .map(file -> file.getFileName())
                .collect(Collectors.joining("|")));
        }
        return null;
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
