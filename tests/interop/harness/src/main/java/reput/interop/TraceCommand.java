package reput.interop;

import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.List;
import org.apache.rocketmq.client.AccessChannel;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.client.trace.TraceType;
import org.apache.rocketmq.common.message.MessageType;

/**
 * The body that a client's tracing sends for an event, as hex digits. A question has its fields,
 * separated by tabs: kind, time, region, group, request, topic, message id, tags, keys, store host,
 * body length, cost, message type, offset message id, success, retries, context code, transaction
 * id, transaction state, whether a check asked.
 */
final class TraceCommand {
    private TraceCommand() {
    }

    static String answer(String question) {
        String[] words = question.split("\t", -1);
        TraceContext context = new TraceContext();
        context.setTraceType(TraceType.valueOf(words[0]));
        context.setTimeStamp(Long.parseLong(words[1]));
        context.setRegionId(words[2]);
        context.setGroupName(words[3]);
        context.setRequestId(words[4]);
        context.setCostTime(Integer.parseInt(words[11]));
        context.setSuccess(Boolean.parseBoolean(words[14]));
        context.setContextCode(Integer.parseInt(words[16]));
        context.setAccessChannel(AccessChannel.LOCAL);
        TraceBean bean = new TraceBean();
        bean.setTopic(words[5]);
        bean.setMsgId(words[6]);
        bean.setTags(words[7]);
        bean.setKeys(words[8]);
        bean.setStoreHost(words[9]);
        bean.setBodyLength(Integer.parseInt(words[10]));
        bean.setMsgType(MessageType.values()[Integer.parseInt(words[12])]);
        bean.setOffsetMsgId(words[13]);
        bean.setRetryTimes(Integer.parseInt(words[15]));
        bean.setTransactionId(words[17]);
        bean.setTransactionState(LocalTransactionState.valueOf(words[18]));
        bean.setFromTransactionCheck(Boolean.parseBoolean(words[19]));
        context.setTraceBeans(List.of(bean));
        String data = TraceDataEncoder.encoderFromContextBean(context).getTransData();
        return HexFormat.of().formatHex(data.getBytes(StandardCharsets.UTF_8));
    }
}
