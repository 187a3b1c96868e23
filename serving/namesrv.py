"""The name server's part: which broker has which topic, and where clients reach it.

Source: RocketMQ 5.3.3 ``ClientRequestProcessor``, ``DefaultRequestProcessor``; brokers of others
cannot register here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reput.serving import requests
from reput.serving.codes import RequestCode, ResponseCode
from reput.serving.connection import Connection, Handler, Refused
from reput.serving.frame import Frame
from reput.serving.stores import BrokerIdentity
from reput.serving.topics import CONSUMERS_PREFIXES, Topics
from reput.store.log.systemtopics import DEFAULT_TOPIC

MASTER_ID = "0"


class RoutedBroker(Protocol):
    """A broker as routes describe it."""

    identity: BrokerIdentity
    topics: Topics
    port: int

    @property
    def twin(self) -> RoutedBroker | None:
        """The overlay of a base, or the base of an overlay; None without one."""


class NameServer:
    """Answers for all brokers."""

    def __init__(self, brokers: Sequence[RoutedBroker], advertised_host: str | None) -> None:
        """Without ``advertised_host`` a client gets the address at which it reached us."""
        self._brokers = brokers
        self._advertised_host = advertised_host

    @property
    def handlers(self) -> dict[int, Handler]:
        """The requests that are answered here."""
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.topic_list,
            RequestCode.GET_KV_CONFIG: self.kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.kv_list,
        }

    def route(self, connection: Connection, request: Frame) -> Frame:
        """Answer with the brokers and queues of a topic."""
        topic = requests.text(request, "topic")
        configs = [
            (broker, config)
            for broker in self._brokers
            if (config := broker.topics.find(topic)) is not None
        ]
        twins = [broker for broker in self._brokers if broker.twin is not None]
        is_default = topic == DEFAULT_TOPIC and bool(twins)
        if not configs and not is_default:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {topic}",
            )
        named = {id(broker): broker for broker, _ in configs}
        if is_default:
            # producers of 4.9 begin with it, and tell all of these of their groups
            named |= {id(broker): broker for broker in twins}
        elif topic.startswith(CONSUMERS_PREFIXES) or any(b.topics.owes(topic) for b in twins):
            # tools then ask both, and clients tell both of their groups
            named |= {id(b.twin): b.twin for b in named.values() if b.twin is not None}
        route = {
            "brokerDatas": [self._broker_data(connection, broker) for broker in named.values()],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": broker.identity.name,
                    "perm": config.perm,
                    "readQueueNums": config.read_queue_nums,
                    "topicSysFlag": config.sys_flag,
                    "writeQueueNums": config.write_queue_nums,
                }
                for broker, config in configs
            ],
        }
        return request.answer(ResponseCode.SUCCESS, body=requests.to_json(route))

    def _broker_data(self, connection: Connection, broker: RoutedBroker) -> dict[str, object]:
        host = self._advertised_host or connection.local_host
        return {
            "brokerAddrs": {MASTER_ID: f"{host}:{broker.port}"},
            "brokerName": broker.identity.name,
            "cluster": broker.identity.cluster,
            "enableActingMaster": False,
        }

    def cluster_info(self, connection: Connection, request: Frame) -> Frame:
        """Answer with all brokers."""
        clusters: dict[str, list[str]] = {}
        for broker in self._brokers:
            clusters.setdefault(broker.identity.cluster, []).append(broker.identity.name)
        body = {
            "brokerAddrTable": {
                broker.identity.name: self._broker_data(connection, broker)
                for broker in self._brokers
            },
            "clusterAddrTable": clusters,
        }
        return request.answer(ResponseCode.SUCCESS, body=requests.to_json(body))

    def topic_list(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with all topics."""
        names = sorted({name for broker in self._brokers for name in broker.topics.names()})
        body = requests.to_json({"topicList": names})
        return request.answer(ResponseCode.SUCCESS, body=body)

    def kv_config(self, _connection: Connection, request: Frame) -> Frame:
        """Answer that there is no such configuration."""
        namespace, key = request.ext.get("namespace"), request.ext.get("key")
        raise Refused(
            ResponseCode.QUERY_NOT_FOUND,
            f"No config item, Namespace: {namespace} Key: {key}",
        )

    def kv_list(self, _connection: Connection, request: Frame) -> Frame:
        """Answer with an empty table."""
        return request.answer(ResponseCode.SUCCESS, body=requests.to_json({"table": {}}))
