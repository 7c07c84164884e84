"""Peers that are added to and taken from a configuration file, of which nothing else changes."""

import difflib
import tomllib
from pathlib import Path

import pytest

from replicator.config import Address, PeerConfig, load_config, with_peer, without_peer
from replicator.config.edit import EditError
from replicator.errors import ConfigError

FILE = Path("/etc/mail-replicator/dc1.toml")

PLAIN = """\
# Of the first data centre
[node] # this one
id = "dc1"

# Near
[[peer]] # here
id = "dc2"
address = "127.0.0.1:2"

# Far
[[peer]]
address = "127.0.0.1:3" # a tunnel
id = "dc3"

# The cluster's users
[users]
passwd_file = "users" # by Ann

"""


def changed(before: str, after: str) -> list[str]:
    """Return the lines that were taken away and added."""
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def test_peer_is_added_below_the_others() -> None:
    text = with_peer(FILE, PLAIN, "dc4", "127.0.0.1:4")
    assert changed(PLAIN, text) == ["+[[peer]]", '+id = "dc4"', '+address = "127.0.0.1:4"', "+"]
    assert text.index("dc3") < text.index("dc4") < text.index("# The cluster's users")
    assert load_config(FILE, text=text).peers[2] == PeerConfig("dc4", Address("127.0.0.1", 4))


def test_first_peer_is_added_at_the_end() -> None:
    for end in ("", "\n", "\n\n"):
        text = with_peer(FILE, f'[node]\nid = "dc1"{end}', "dc2", "unix:dc2.sock")
        assert text == f'[node]\nid = "dc1"\n\n[[peer]]\nid = "dc2"\naddress = "unix:dc2.sock"{end}'


def test_removed_peer_leaves_comments_that_do_not_name_it() -> None:
    first, second = (without_peer(FILE, PLAIN, sid) for sid in ("dc2", "dc3"))
    assert changed(PLAIN, first) == [
        '+removed = ["dc2"]', "-[[peer]] # here", '-id = "dc2"', '-address = "127.0.0.1:2"', "-"
    ]  # fmt: skip
    assert changed(PLAIN, second) == [
        '+removed = ["dc3"]', "-[[peer]]", '-address = "127.0.0.1:3" # a tunnel', '-id = "dc3"', "-"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("listed", "with_dc2"),
    [
        ("removed = []", 'removed = ["dc2"]'),
        ('removed = ["dc9"] # gone', 'removed = ["dc2", "dc9"] # gone'),
        ("removed = [\n  'dc9', # in spring\n]", "removed = [\"dc2\",\n  'dc9', # in spring\n]"),
    ],
)
@pytest.mark.parametrize(
    "head", ['[node]\nid = "dc1"\n', "[node]\nid = 'dc1' #\n", "[ node ]\npriority = 5\nid='dc1'\n"]
)
def test_removed_nodes_are_listed_as_the_file_lists_them(head: str, listed: str, with_dc2: str) -> None:
    end = '[[peer]]\nid = "dc2"\naddress = "127.0.0.1:2"\n'
    text = without_peer(FILE, f"{head}{listed}\n{end}", "dc2")
    assert text == f"{head}{with_dc2}\n"
    back = with_peer(FILE, text, "dc2", "127.0.0.1:2")
    removed = load_config(FILE, text=back).node.removed
    assert removed == tuple(tomllib.loads(listed)["removed"])
    assert ("# in spring" in back, "# gone" in back) == ("# in spring" in listed, "# gone" in listed)


@pytest.mark.parametrize(
    "removed", ['["a", "b", "c"]', '[ "a" , "b","c" , ]', '[\n"c",\n"b", # x\n"a"\n]', "['c','b','a']"]
)
@pytest.mark.parametrize("sid", ["a", "b", "c"])
def test_node_that_comes_back_is_no_removed_one(removed: str, sid: str) -> None:
    before = f'node.id = "dc1"\nnode.removed = {removed}\n'
    after = load_config(FILE, text=with_peer(FILE, before, sid, "127.0.0.1:2"))
    assert set(after.node.removed) == {"a", "b", "c"} - {sid}


def test_dotted_keys_are_kept() -> None:
    before = 'node.id = "dc1"\nnode.priority = 1\n[[peer]]\nid = "dc2"\naddress = "127.0.0.1:2"'
    assert without_peer(FILE, before, "dc2") == 'node.id = "dc1"\nnode.removed = ["dc2"]\nnode.priority = 1\n'


def test_line_ends_are_kept() -> None:
    before = PLAIN.replace("\n", "\r\n")
    after = with_peer(FILE, before, "dc4", "127.0.0.1:4")
    assert after.count("\r\n") == after.count("\n") == before.count("\n") + 4


@pytest.mark.parametrize("first", ["\r\n", "\n"])
def test_each_line_keeps_its_own_end(first: str) -> None:
    """An editor of another system may have written some of the lines."""
    ends = [first, *("\r\n" if number % 3 else "\n" for number in range(PLAIN.count("\n") - 1))]
    lines = [line + end for line, end in zip(PLAIN.split("\n"), ends, strict=False)]
    with_more = with_peer(FILE, "".join(lines), "dc4", "127.0.0.1:4").splitlines(keepends=True)
    added = [line + first for line in ("", "[[peer]]", 'id = "dc4"', 'address = "127.0.0.1:4"')]
    assert with_more == [*lines[:13], *added, *lines[13:]]
    with_less = without_peer(FILE, "".join(lines), "dc2").splitlines(keepends=True)
    assert with_less == [*lines[:3], f'removed = ["dc2"]{first}', *lines[3:5], *lines[9:]]


def test_lines_of_a_list_keep_their_ends() -> None:
    before = 'node.id = "dc1"\nnode.removed = [\r\n"c",\n"b", # x\r\n"a"\n]\r\n'
    after = with_peer(FILE, before, "c", "127.0.0.1:2")
    without = before.replace('"c",', "")
    assert after == f'{without}\n[[peer]]\nid = "c"\naddress = "127.0.0.1:2"\n'


@pytest.mark.parametrize(
    ("comment", "goes"),
    [
        ("# DC2: in Frankfurt", True),
        ("# The second rack.\n  # Ann cares for dc2, which is old.\n", True),
        ("# [[peer]]\n# id = 'dc2'\n# address = '192.0.2.1:1'", True),
        ("# Far", False),
        ("# dc2 and dc3: by tunnels", False),
        ("# behind dc1, as dc2 is", False),
        ("# dc20 is to come here", False),
        ("# not-dc2", False),
        ("# dc2: in Frankfurt\n\n", False),
    ],
)
def test_a_comment_goes_with_a_peer_if_it_names_that_node_alone(comment: str, *, goes: bool) -> None:
    comment = comment if comment.endswith("\n") else f"{comment}\n"
    others = '[node]\nid = "dc1"\n[[peer]]\nid = "dc3"\naddress = "127.0.0.1:3"\n'
    text = without_peer(FILE, f'{others}{comment}[[peer]]\nid = "dc2"\naddress = "127.0.0.1:2"\n', "dc2")
    assert text == others.replace('"dc1"\n', '"dc1"\nremoved = ["dc2"]\n') + ("" if goes else comment)


@pytest.mark.parametrize(
    "before",
    [
        'node.id = "dc1"\npeer = [{id = "dc2", address = "127.0.0.1:2"}]\n',
        'node = {id = "dc1"}\n[[peer]]\nid = "dc2"\naddress = "127.0.0.1:2"\n',
        '[node]\n"id" = "dc1"\n[[peer]]\nid = "dc2"\naddress = "127.0.0.1:2"\n',
    ],
)
def test_what_cannot_be_edited_is_refused(before: str) -> None:
    with pytest.raises(ConfigError, match="by hand"):
        without_peer(FILE, before, "dc2")


def test_a_removal_in_a_comment_is_not_taken_for_one() -> None:
    before = '[node]\nid = "dc1"\nremoved = [ # "dc8"\n"dc8"]\n'
    with pytest.raises(EditError, match="by hand"):
        with_peer(FILE, before, "dc8", "127.0.0.1:2")


@pytest.mark.parametrize(
    ("sid", "address", "problem"),
    [
        ("dc2", "127.0.0.1:9", r"dc2 is a peer already, at 127\.0\.0\.1:2"),
        ("dc1", "127.0.0.1:9", "'dc1' is this node itself"),
        ("DC4", "127.0.0.1:9", "id: expected a node id"),
        ('d"\n[x]', "127.0.0.1:9", "id: expected a node id"),
        ("dc4", "127.0.0.1", "address: expected"),
        ("dc4", "127.0.0.1:3", "is already the address of a peer above"),
        ("dc4", "mail.example.org:3", "is on another machine, so it needs a"),
    ],
)
def test_peer_that_does_not_fit_is_refused(sid: str, address: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        with_peer(FILE, PLAIN, sid, address)


def test_peer_that_cannot_be_removed_is_named() -> None:
    with pytest.raises(EditError, match="dc9 is no peer of dc1; its peers: dc2, dc3"):
        without_peer(FILE, PLAIN, "dc9")
    with pytest.raises(EditError, match="dc9 is no peer of dc1; it has none"):
        without_peer(FILE, 'node.id = "dc1"', "dc9")
    with pytest.raises(ConfigError, match=r"dc1\.toml:1[0-9]: copies: expected a whole number from 1 to 2"):
        without_peer(FILE, PLAIN.rstrip() + "\n[durability]\ncopies = 3\n", "dc2")


def test_file_that_says_that_it_is_written_elsewhere_is_left_alone() -> None:
    for line in ("# Ansible managed", "# This file is managed by Puppet.", "#### DO NOT EDIT"):
        with pytest.raises(EditError, match=r"dc1\.toml:1: this says that the file is written elsewhere"):
            with_peer(FILE, f"{line}\n{PLAIN}", "dc4", "127.0.0.1:4")
