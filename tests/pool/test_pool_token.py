"""Which file a pool may have shown to its cluster: a stranger's could name any of the user's."""

from pathlib import Path

import pytest

from shoal.engine.ownership import token_file
from shoal.pool.folder import OpenPool, PoolError
from shoal.study import backends


def pool(token: Path) -> OpenPool:
    return OpenPool("10.0.0.9:6379", 1, "there", 1, token=True, token_file=str(token))


def test_only_a_token_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Cluster:
        use_token = staticmethod(shown.append)

    monkeypatch.setattr(backends, "import_module", lambda _: Cluster)
    key = tmp_path / "id_ed25519"
    key.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n" + "a" * 500)
    key.chmod(0o600)
    token = token_file(tmp_path / "token")
    link = tmp_path / "link"
    link.symlink_to(token)
    for wrong in (key, link, tmp_path / "none", tmp_path):
        with pytest.raises(PoolError, match="must be a token"):
            backends._open_to(pool(wrong))
    assert not shown
    assert backends._open_to(pool(token)) == "10.0.0.9:6379"
    assert shown == [str(token)]
