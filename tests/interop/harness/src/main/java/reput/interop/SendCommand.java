package reput.interop;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.EnumMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends a {@link MessagePlan} with real producers and counts what it sent.
 *
 * <p>One attempt per message: a retry could store a message twice, and then no count would hold. The
 * seed also chooses the queues, save for transactions, whose queue the client chooses. Committed and
 * delayed messages become visible only some time after this returns (the commit is one-way, delay
 * level 1 is a second): wait for {@code visible} messages when reading.
 *
 * @param lightQueues names of which plain messages are dispatched to some as well
 */
record SendCommand(
    String nameServer,
    String topic,
    int count,
    long seed,
    double rate,
    List<String> lightQueues,
    Protocol protocol)
    implements Callable<Void> {

    private static final int SEND_TIMEOUT_MILLIS = 30_000;
    private static final CompressionType[] COMPRESSIONS = {
        CompressionType.ZLIB, CompressionType.LZ4, CompressionType.ZSTD
    };

    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return new SendCommand(
            arguments.get(0),
            arguments.get(1),
            Integer.parseInt(arguments.get(2)),
            Long.parseLong(arguments.get(3)),
            Double.parseDouble(arguments.get(4)),
            arguments.subList(5, arguments.size()),
            protocol);
    }

    @Override
    public Void call() throws Exception {
        DefaultMQProducer plain = start(new DefaultMQProducer("interop_send"));
        TransactionMQProducer transactional = new TransactionMQProducer("interop_transaction");
        transactional.setTransactionListener(new DecidedInAdvance());
        start(transactional);
        try {
            protocol.json(send(plain, transactional));
        } finally {
            QuickStop.run(transactional::shutdown);
            QuickStop.run(plain::shutdown);
        }
        return null;
    }

    private Map<String, Object> send(DefaultMQProducer plain, TransactionMQProducer transactional)
        throws Exception {
        List<MessageQueue> queues = new ArrayList<>(plain.fetchPublishMessageQueues(topic));
        queues.sort(Comparator.comparingInt(MessageQueue::getQueueId));
        MessagePlan plan = new MessagePlan(topic, count, seed, lightQueues);
        Tally tally = new Tally();
        long begin = System.nanoTime();
        while (plan.hasNext()) {
            MessagePlan.Step step = plan.next();
            tally.add(step);
            MessageQueue queue = queues.get(step.queueChoice() % queues.size());
            switch (step.kind()) {
                case BATCH -> check(plain.send(step.messages(), queue));
                case COMMIT, ROLLBACK -> check(transactional.sendMessageInTransaction(
                    step.messages().get(0), null));
                case COMPRESSED -> {
                    plain.setCompressType(COMPRESSIONS[tally.steps() % COMPRESSIONS.length]);
                    check(plain.send(step.messages().get(0), queue));
                }
                default -> check(plain.send(step.messages().get(0), queue));
            }
            keepRate(begin, tally.sent());
        }
        return tally.report();
    }

    private <P extends DefaultMQProducer> P start(P producer) throws Exception {
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MILLIS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        return producer;
    }

    private void keepRate(long begin, int sent) throws InterruptedException {
        if (rate > 0) {
            long due = begin + (long) (sent / rate * 1e9);
            long millis = (due - System.nanoTime()) / 1_000_000;
            if (millis > 0) {
                Thread.sleep(millis);
            }
        }
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("not stored: " + result);
        }
    }

    /** Commits or rolls back as the message says, also when the broker has to ask again. */
    private static final class DecidedInAdvance implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return decision(message);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            return decision(message);
        }

        private static LocalTransactionState decision(Message message) {
            String outcome = message.getUserProperty(MessagePlan.OUTCOME);
            return outcome.equals(MessagePlan.Kind.COMMIT.name())
                ? LocalTransactionState.COMMIT_MESSAGE
                : LocalTransactionState.ROLLBACK_MESSAGE;
        }
    }

    /** What was sent, by kind. */
    private static final class Tally {
        private final Map<MessagePlan.Kind, Integer> counts =
            new EnumMap<>(MessagePlan.Kind.class);
        private final Digests visible = new Digests();
        private int steps;
        private int batches;
        private int sent;
        private int tagged;
        private int keyed;

        void add(MessagePlan.Step step) {
            steps++;
            sent += step.messages().size();
            counts.merge(step.kind(), step.messages().size(), Integer::sum);
            if (step.kind() == MessagePlan.Kind.BATCH) {
                batches++;
            }
            for (Message message : step.messages()) {
                tagged += message.getTags() == null ? 0 : 1;
                keyed += message.getKeys() == null ? 0 : 1;
                if (step.kind() != MessagePlan.Kind.ROLLBACK) {
                    visible.add(message.getBody());
                }
            }
        }

        int steps() {
            return steps;
        }

        int sent() {
            return sent;
        }

        Map<String, Object> report() {
            Map<String, Object> report = new LinkedHashMap<>();
            report.put("sent", sent);
            report.put("visible", visible.count());
            report.put("plain", counts.getOrDefault(MessagePlan.Kind.PLAIN, 0));
            report.put("batched", counts.getOrDefault(MessagePlan.Kind.BATCH, 0));
            report.put("batches", batches);
            report.put("compressed", counts.getOrDefault(MessagePlan.Kind.COMPRESSED, 0));
            report.put("delayed", counts.getOrDefault(MessagePlan.Kind.DELAYED, 0));
            report.put("committed", counts.getOrDefault(MessagePlan.Kind.COMMIT, 0));
            report.put("rolled_back", counts.getOrDefault(MessagePlan.Kind.ROLLBACK, 0));
            report.put("tagged", tagged);
            report.put("keyed", keyed);
            report.put("bodies_sha256", visible.bodies());
            return report;
        }
    }
}
