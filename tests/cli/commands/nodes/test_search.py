import json

from replicator.status import SearchTextStatus
from tests.cli.conftest import Invoke
from tests.cli.served_node import ServedNode


def test_rebuild_tells_what_is_made_anew(served: ServedNode, invoke: Invoke) -> None:
    served.search_texts.status = SearchTextStatus(300, 20, 4096)
    result = invoke("search", "rebuild", "--url", served.url)
    what = "deletes its search texts (4 KiB of 300 bodies), and makes all anew in the background"
    assert result.exit_code == 0
    assert result.stdout == f"{served.url} {what}; `status` tells how far it is\n"
    assert served.search_texts.begun == 1


def test_rebuild_prints_json(served: ServedNode, invoke: Invoke) -> None:
    answer = json.loads(invoke("search", "rebuild", "--json", "--url", served.url).stdout)
    assert answer == {"bodies": 0, "waiting": 0, "size_bytes": 0}


def test_status_tells_of_search_texts_that_are_to_come(served: ServedNode, invoke: Invoke) -> None:
    served.report.search_texts = SearchTextStatus(300, 20, 4096)
    output = " ".join(invoke("status", "--url", served.url).stdout.split())
    assert "dc1 is yet to keep the text of 20 bodies for SEARCH, which reads them until then" in output
    (node,) = json.loads(invoke("status", "--json", "--url", served.url).stdout)["nodes"]
    assert node["status"]["search_texts"] == {"bodies": 300, "waiting": 20, "size_bytes": 4096}
    served.report.search_texts = SearchTextStatus(320, 0, 4096)
    assert "SEARCH" not in invoke("status", "--url", served.url).stdout
