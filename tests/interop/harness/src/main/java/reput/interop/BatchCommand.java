package reput.interop;

import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.StorePathConfigHelper;
import org.apache.rocketmq.store.queue.BatchConsumeQueue;
import org.apache.rocketmq.store.queue.CqUnit;

/**
 * RocketMQ's BatchConsumeQueue by itself: queue topic/0 of the store in DIRECTORY.
 *
 * <p>Questions: {@code put OFFSET SIZE TAGS_CODE STORE_TIME BASE BATCH_SIZE}; {@code unit QUEUE_OFFSET}
 * answers the physical offset found or -1, {@code lower TIME} and {@code upper TIME} a queue offset,
 * {@code min LOG_MIN_OFFSET} and {@code max} the queue's; {@code recover} and {@code truncate OFFSET}
 * answer the last message's physical offset. Files are flushed before the answer.
 */
record BatchCommand(BatchConsumeQueue queue, List<String> questions, Protocol protocol)
    implements Callable<Void> {
    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return () -> {
            DefaultMessageStore store = OpenStore.unstarted(arguments.get(0));
            BatchConsumeQueue queue = new BatchConsumeQueue(
                "topic", 0, StorePathConfigHelper.getStorePathBatchConsumeQueue(arguments.get(0)),
                Integer.parseInt(arguments.get(1)), store);
            return new BatchCommand(
                queue, arguments.subList(2, arguments.size()), protocol).call();
        };
    }

    @Override
    public Void call() throws Exception {
        if (!queue.load()) {
            throw new IllegalStateException("the files could not be loaded");
        }
        queue.recover();
        List<String> answers = QuestionsCommand.answers(
            questions, question -> String.valueOf(answer(question.split(" "))));
        queue.flush(0);
        protocol.json(Map.of("answers", answers));
        return null;
    }

    private long answer(String[] words) {
        long[] numbers = Stream.of(words).skip(1).mapToLong(Long::parseLong).toArray();
        switch (words[0]) {
            case "put":
                return put(numbers);
            case "unit":
                CqUnit unit = queue.get(numbers[0]);
                return unit == null ? -1 : unit.getPos();
            case "lower":
                return queue.getOffsetInQueueByTime(numbers[0], BoundaryType.LOWER);
            case "upper":
                return queue.getOffsetInQueueByTime(numbers[0], BoundaryType.UPPER);
            case "min":
                queue.correctMinOffset(numbers[0]);
                return queue.getMinOffsetInQueue();
            case "max":
                return queue.getMaxOffsetInQueue();
            case "recover":
                queue.recover();
                return queue.getMaxPhysicOffset();
            case "truncate":
                queue.truncateDirtyLogicFiles(numbers[0]);
                return queue.getMaxPhysicOffset();
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }

    private long put(long[] numbers) {
        boolean done = queue.putBatchMessagePositionInfo(
            numbers[0], (int) numbers[1], numbers[2], numbers[3], numbers[4], (short) numbers[5]);
        return done ? queue.getMaxPhysicOffset() : -1;
    }
}
