package reput.interop;

import java.util.List;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer of transactions that it leaves open: one for each of OUTCOMES, a word of those of
 * {@code LocalTransactionState}, which it answers only when it is asked. It says {@code READY}, then
 * a line for each time that it is asked: the number and the word. It ends at the end of stdin.
 *
 * <p>Only classes that RocketMQ 4.9 has too are used: the same jar runs with the client of either.
 */
record TransactCommand(
    String nameServer, String topic, String group, List<String> outcomes, Protocol protocol)
    implements Callable<Void> {

    private static final int FLAG = 5;
    private static final int HEARTBEAT_MILLIS = 1000;

    static Callable<Void> parse(List<String> arguments, Protocol protocol) {
        return new TransactCommand(
            arguments.get(0), arguments.get(1), arguments.get(2),
            arguments.subList(3, arguments.size()), protocol);
    }

    @Override
    public Void call() throws Exception {
        TransactionMQProducer producer = producer();
        producer.setNamesrvAddr(nameServer);
        producer.setHeartbeatBrokerInterval(HEARTBEAT_MILLIS);
        producer.setTransactionListener(new AnswersWhenAsked());
        producer.start();
        int number = 0;
        for (String outcome : outcomes) {
            Message message = new Message(topic, ("half " + number).getBytes());
            message.setFlag(FLAG);
            message.putUserProperty("number", String.valueOf(number++));
            message.putUserProperty("outcome", outcome);
            producer.sendMessageInTransaction(message, null);
        }
        protocol.ready();
        Protocol.requests().forEach(line -> {});
        QuickStop.run(producer::shutdown);
        protocol.line("STOPPED");
        return null;
    }

    /** One that asks for its topic's route at its start, as far as its release can. */
    private TransactionMQProducer producer() throws Exception {
        try {
            return TransactionMQProducer.class
                .getConstructor(String.class, List.class)
                .newInstance(group, List.of(topic));
        } catch (NoSuchMethodException e) {
            return new TransactionMQProducer(group);
        }
    }

    private final class AnswersWhenAsked implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return LocalTransactionState.UNKNOW;
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String outcome = message.getUserProperty("outcome");
            protocol.lineWhenReady(message.getUserProperty("number") + " " + outcome
                + " " + message.getTopic() + " " + message.getQueueId());
            return LocalTransactionState.valueOf(outcome);
        }
    }
}
