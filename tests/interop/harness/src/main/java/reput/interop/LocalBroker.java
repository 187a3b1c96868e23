package reput.interop;

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.TopicAttributes;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.constant.PermName;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.config.StorePathConfigHelper;

/**
 * Name server and broker in this process, on free loopback ports, over one store directory.
 *
 * <p>Invariant: after {@link #stop()} returns, everything in the CommitLog is dispatched and the
 * store is closed as after a normal broker shutdown; otherwise it throws.
 */
final class LocalBroker {
    private static final String LOOPBACK = "127.0.0.1";
    private static final Duration DISPATCH_LIMIT = Duration.ofSeconds(60);
    private static final Duration NAME_SERVER_LIMIT = Duration.ofSeconds(30);

    private final NamesrvController nameServer;
    private final BrokerController broker;

    LocalBroker(StoreSettings settings) throws Exception {
        // Without it the broker registers as version 0 and the name server drops its topics.
        System.setProperty(
            RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        // Making a certificate costs a second, and nothing here leaves the machine.
        System.setProperty(TlsSystemConfig.TLS_SERVER_MODE, "disabled");
        nameServer = new NamesrvController(new NamesrvConfig(), anyLoopbackPort());
        require(nameServer.initialize(), "name server did not initialize");
        nameServer.start();

        BrokerConfig brokerConfig = settings.brokerConfig();
        brokerConfig.setNamesrvAddr(nameServerAddress());
        MessageStoreConfig storeConfig = settings.storeConfig();
        broker = new BrokerController(
            brokerConfig, anyLoopbackPort(), new NettyClientConfig(), storeConfig);
        require(broker.initialize(), "broker did not initialize: can it read this store?");
    }

    String nameServerAddress() {
        return LOOPBACK + ":" + nameServer.getNettyServerConfig().getListenPort();
    }

    /** Returns when a client that asks the name server finds every topic, old and new. */
    void start(List<BrokerCommand.TopicSpec> topics) throws Exception {
        broker.start();
        for (BrokerCommand.TopicSpec topic : topics) {
            broker.getTopicConfigManager().updateTopicConfig(config(topic));
        }
        // The broker's client connects in the background, and until then it registers with nobody
        // and says nothing; the next try would be ten seconds later.
        Waiting.until(
            "connection to the name server",
            NAME_SERVER_LIMIT,
            () -> !broker.getBrokerOuterAPI().getRemotingClient().getAvailableNameSrvList()
                .isEmpty());
        broker.registerBrokerAll(true, false, true);
        for (String topic : broker.getTopicConfigManager().getTopicConfigTable().keySet()) {
            awaitRoute(topic);
        }
    }

    /** What {@code AdminBrokerProcessor.updateAndCreateTopic} does; the type may be null. */
    void updateTopic(BrokerCommand.TopicSpec topic, String queueType) throws Exception {
        TopicConfig config = config(topic);
        if (queueType != null) {
            String name = TopicAttributes.QUEUE_TYPE_ATTRIBUTE.getName();
            config.setAttributes(new HashMap<>(Map.of("+" + name, queueType)));
        }
        broker.getTopicConfigManager().updateTopicConfig(config);
        broker.registerBrokerAll(true, false, true);
        awaitRoute(topic.name());
    }

    /** What {@code AdminBrokerProcessor.deleteTopicInBroker} does to files. */
    void deleteTopic(String topic) {
        broker.getTopicConfigManager().deleteTopicConfig(topic);
        broker.getMessageStore().deleteTopics(Set.of(topic));
    }

    void registerFilter(String topic, String group, String expression) {
        boolean registered = broker.getConsumerFilterManager().register(
            topic, group, expression, ExpressionType.SQL92, System.currentTimeMillis());
        require(registered, "the expression was not registered");
        broker.getConsumerFilterManager().persist();
    }

    private static TopicConfig config(BrokerCommand.TopicSpec topic) {
        int permission = PermName.PERM_READ | PermName.PERM_WRITE;
        return new TopicConfig(topic.name(), topic.queues(), topic.queues(), permission, 0);
    }

    private void awaitRoute(String topic) throws Exception {
        Waiting.until(
            "route of topic " + topic,
            NAME_SERVER_LIMIT,
            () -> nameServer.getRouteInfoManager().pickupTopicRouteData(topic) != null);
    }

    /**
     * Stops in an order that leaves nothing undispatched.
     *
     * <p>{@code BrokerController.shutdown()} closes the store before the services that write to it
     * (delayed delivery, transaction checks), so those are stopped first here.
     */
    void stop() throws Exception {
        broker.changeSpecialServiceStatus(false);
        Waiting.until(
            "dispatch of the whole commit log",
            DISPATCH_LIMIT,
            () -> broker.getMessageStore().dispatchBehindBytes() == 0);
        QuickStop.run(broker::shutdown);
        // The name server holds no state and takes seconds to stop: it just ends with the process.
        Path abort = Path.of(StorePathConfigHelper.getAbortFile(
            broker.getMessageStoreConfig().getStorePathRootDir()));
        require(!Files.exists(abort), "unclean stop: the abort file is still there");
    }

    private static NettyServerConfig anyLoopbackPort() {
        NettyServerConfig config = new NettyServerConfig();
        config.setBindAddress(LOOPBACK);
        config.setListenPort(0);
        return config;
    }

    private static void require(boolean condition, String problem) {
        if (!condition) {
            throw new IllegalStateException(problem);
        }
    }
}
