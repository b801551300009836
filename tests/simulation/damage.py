"""Bytes of a snapshot that change after they were written.

Once a history, and only where two snapshots are kept: then a cleaner has removed nothing that the older one
does not say, and whoever has to open the root is owed that it opens.
"""

from sparklog.metadata.documents.properties import commit_name, manifest_of, snapshot_of
from tests.simulation.setting import Setting


def damage_newest_snapshot(setting: Setting, *, only_way: bool) -> bool:
    """Change a byte, or cut one off, in any file of the newest snapshot; false if that would be too much.

    Args:
        only_way: not before commits have been removed, which only snapshots know.
    """
    store = setting.disk or setting.server
    assert store is not None
    snapshots = sorted(number for number in map(manifest_of, store.files) if number is not None)
    if setting.has_damage or setting.settings.snapshots_kept < 2 or not snapshots:
        return False
    has_commits = commit_name(1) in store.files
    if only_way if has_commits else len(snapshots) < 2:
        return False
    dice = setting.dice
    name = dice.choice(sorted(name for name in store.files if snapshot_of(name) == snapshots[-1]))
    content = bytearray(store.files[name].content)
    if dice.random() < 0.3:
        del content[-1:]
    else:
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    store.damage(name, content)
    setting.has_damage = True
    return True
