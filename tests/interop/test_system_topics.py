"""RocketMQ's own topics, as two of its releases name them.

Its ``TopicValidator`` is asked about its whole set, every topic's name among the constants of its
jars, and names that are none.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from reput.store.log.systemtopics import SYSTEM_TOPICS, is_system_topic
from tests.interop.harnessjvm import NEWEST, PARITY, build_harness
from tests.interop.rocketmq import require_maven

PRINT_TOPICS = """
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.TreeSet;
import java.util.jar.JarEntry;
import java.util.jar.JarFile;
import org.apache.rocketmq.common.topic.TopicValidator;

public class PrintTopics {
    public static void main(String[] jars) throws Exception {
        for (String topic : TopicValidator.getSystemTopicSet()) {
            System.out.println("set\\t" + topic);
        }
        TreeSet<String> names = new TreeSet<>();
        for (String jar : jars) {
            try (JarFile file = new JarFile(jar)) {
                for (JarEntry entry : (Iterable<JarEntry>) file.stream()::iterator) {
                    String name = entry.getName();
                    if (name.startsWith("org/apache/rocketmq/") && name.endsWith(".class")) {
                        add(names, name.substring(0, name.length() - 6).replace('/', '.'));
                    }
                }
            }
        }
        for (String name : names) {
            System.out.println(TopicValidator.isSystemTopic(name) + "\\t" + name);
        }
    }

    private static void add(TreeSet<String> names, String type) throws Exception {
        Field[] fields;
        try {
            fields = Class.forName(type, false, PrintTopics.class.getClassLoader())
                .getDeclaredFields();
        } catch (LinkageError e) {
            return;  // it needs a library that the harness does without
        }
        for (Field field : fields) {
            if (field.getType() == String.class && Modifier.isStatic(field.getModifiers())
                    && field.getName().contains("TOPIC")) {
                field.setAccessible(true);
                names.add((String) field.get(null));
            }
        }
    }
}
"""
JARS = ("broker", "client", "common", "remoting", "store", "tiered-store", "tools")
NOT_IN_PARITY = {"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"}
"""Topics of the newest release alone, which a store of the other one does not have."""


def topics_of(release: str, directory: Path) -> tuple[set[str], dict[str, bool]]:
    """A release's set of system topics, and its verdict on each constant with TOPIC in its name."""
    require_maven()
    source = directory / "PrintTopics.java"
    source.write_text(PRINT_TOPICS)
    libraries = build_harness(release).parent / "lib"
    jars = [str(next(libraries.glob(f"rocketmq-{name}-[0-9]*.jar"))) for name in JARS]
    done = subprocess.run(
        ["java", f"-Duser.home={directory}", "-XX:TieredStopAtLevel=1", "-cp", libraries / "*",
         source, *jars],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = (line.split("\t") for line in done.stdout.splitlines() if line.count("\t") == 1)
    own: set[str] = set()
    verdicts: dict[str, bool] = {}
    for kind, name in lines:
        if kind == "set":
            own.add(name)
        else:
            verdicts[name] = {"true": True, "false": False}[kind]
    return own, verdicts


@pytest.mark.extended
def test_the_list_is_rocketmqs(tmp_path: Path) -> None:
    """Our list is the newest release's; the other one lacks two of its topics."""
    newest, verdicts = topics_of(NEWEST, tmp_path)
    assert newest == SYSTEM_TOPICS
    assert topics_of(PARITY, tmp_path)[0] == newest - NOT_IN_PARITY
    assert len(verdicts) > 30


@pytest.mark.extended
def test_every_constant_has_rocketmqs_verdict(tmp_path: Path) -> None:
    """Timer wheel, revive log and traces are its own; retry, dead letter and light topics not."""
    for release in (PARITY, NEWEST):
        _, verdicts = topics_of(release, tmp_path)
        for name, is_own in verdicts.items():
            assert is_system_topic(name) is (is_own or name in NOT_IN_PARITY), (release, name)
        for name in ("rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_", "rmq_sys_TRACE_DATA_"):
            assert verdicts[name], (release, name)
        assert not verdicts["%RETRY%"] and not verdicts["%DLQ%"]
