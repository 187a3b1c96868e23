"""The page on RocketMQ's settings names every setting there is, and says what the code does.

Names and defaults are those of RocketMQ's own classes of two releases, asked by reflection as
``MixAll.properties2Object`` looks for them: a property is a public setter.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from reput.store.config import read_store_settings
from reput.store.errors import UsageError
from tests.interop.harnessjvm import RELEASES, build_harness
from tests.interop.rocketmq import require_maven
from tests.support import settings_page

HOME = "~"

PRINT_SETTINGS = """
import java.lang.reflect.Method;
import java.util.Collections;
import java.util.TreeMap;

public class PrintSettings {
    public static void main(String[] names) throws Exception {
        TreeMap<String, Object> found = new TreeMap<>();
        for (String name : names) {
            Class<?> type = Class.forName(name);
            Object config = type.getDeclaredConstructor().newInstance();
            TreeMap<String, Object> own = new TreeMap<>();
            for (Method method : type.getMethods()) {
                String setter = method.getName();
                if (!setter.matches("set.+") || method.getParameterCount() != 1) {
                    continue;
                }
                String property = setter.substring(3, 4).toLowerCase() + setter.substring(4);
                Object value = null;
                for (String prefix : new String[] {"get", "is"}) {
                    try {
                        value = type.getMethod(prefix + setter.substring(3)).invoke(config);
                    } catch (NoSuchMethodException e) {
                        continue;
                    }
                }
                own.put(property, value == null ? "" : value);
            }
            if (!Collections.disjoint(found.keySet(), own.keySet())) {
                throw new IllegalStateException("both classes have a setting of one name");
            }
            found.putAll(own);
        }
        found.forEach((property, value) -> System.out.println(property + "=" + value));
    }
}
"""
CLASSES = (
    "org.apache.rocketmq.store.config.MessageStoreConfig",
    "org.apache.rocketmq.common.BrokerConfig",
)

BASE = "rocksdbCQDoubleWriteEnable=true\nenableMultiDispatch=true\n"
"""Under these every setting that is refused can be, by one line more."""
OTHER_VALUES = {
    "messageDelayLevel": "7s",
    "storePathCommitLog": "/",
    "readOnlyCommitLogStorePaths": "/",
    "storeType": "defaultRocksDB",
    "combineCQLoadingCQTypes": "defaultRocksDB",
    "configManagerVersion": "v2",
}
"""Values that mean something, of settings that are texts."""

TOLD_BY_FILES = {
    "mappedFileSizeCommitLog", "maxErrorRateOfBloomFilter", "expectConsumerNumUseFilter",
    "storePathCommitLog",
}  # fmt: skip
"""Without a statement the log's files and place and the filter file count, not RocketMQ's
default."""


def defaults_of(release: str, directory: Path) -> dict[str, str]:
    """Every property of both classes in a release, and its default."""
    require_maven()
    source = directory / "PrintSettings.java"
    source.write_text(PRINT_SETTINGS)
    jars = build_harness(release).parent / "lib" / "*"
    done = subprocess.run(
        ["java", f"-Duser.home={HOME}", "-XX:TieredStopAtLevel=1", "-cp", jars, source, *CLASSES],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)


def test_every_setting_of_two_releases_is_listed_with_its_default(tmp_path: Path) -> None:
    """None is missing, none is made up, each is listed once; defaults, and which release has it."""
    old, new = (defaults_of(release, tmp_path) for release in RELEASES)
    assert len(old) > 300
    assert len(new) > len(old)
    rows, others = settings_page.rows(), settings_page.others()
    listed = [*rows, *others]
    assert sorted(listed) == sorted(set(listed))
    assert sorted(listed) == sorted({*old, *new})
    for name, row in rows.items():
        assert (row.since == "") == (name in old), name
        found = {release[name] for release in (old, new) if name in release}
        assert found == {row.default}, name


def other_value(name: str, default: str) -> str:
    if default in ("true", "false"):
        return "false" if default == "true" else "true"
    return OTHER_VALUES.get(name, "7")


def test_each_setting_does_what_the_page_says(tmp_path: Path) -> None:
    """Another value changes the store's settings, or is refused, or is not looked at."""
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    rows = settings_page.rows()
    verdicts = {name: row.verdict for name, row in rows.items()}
    verdicts |= dict.fromkeys(settings_page.others(), "of no effect")
    found = {}
    for name in verdicts:
        base = "".join(line for line in BASE.splitlines(True) if not line.startswith(name + "="))
        conf = root / "broker.conf"
        if name == "readOnlyCommitLogStorePaths":
            base += f"storePathCommitLog={root},\n"
        conf.write_text(base)
        before = read_store_settings(root)
        default = rows[name].default if name in rows else ""
        conf.write_text(f"{base}{name}={other_value(name, default)}\n")
        try:
            changed = read_store_settings(root) != before
            found[name] = "honoured" if changed else "of no effect"
        except UsageError:
            found[name] = "refused"
    assert found == verdicts


def test_defaults_here_are_those_of_the_page(tmp_path: Path) -> None:
    """A setting that states its default changes nothing."""
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "broker.conf").touch()
    before = read_store_settings(tmp_path)
    for name, row in settings_page.rows().items():
        if row.verdict == "honoured" and name not in TOLD_BY_FILES:
            (tmp_path / "broker.conf").write_text(f"{name}={row.default}\n")
            assert read_store_settings(tmp_path) == before, name
