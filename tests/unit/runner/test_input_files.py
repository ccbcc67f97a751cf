"""Images in messages, for graders: data becomes a file with a harmless name, everything else stays as it is."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from quintain_runner.graders.input import replace_images_with_files
from support.grading_context import SavedFiles


def openai(url: JsonValue) -> JsonValue:
    return {"type": "image_url", "image_url": {"url": url}}


def agentv(source: JsonValue) -> JsonValue:
    return {"type": "image", "media_type": "image/png", "source": source}


@pytest.mark.parametrize("part", [openai("data:image/png;base64,aGk="), agentv("DATA:image/png;charset=x;base64,aGk=")])
def test_an_image_in_either_words_is_a_file_in_agentvs(part: JsonValue) -> None:
    files = SavedFiles()
    text: JsonValue = {"type": "text", "text": "look"}
    shown = replace_images_with_files([text, part, part], files.save_file)
    ((path, held),) = files.items()
    image = {"type": "image", "media_type": "image/png", "path": path}
    assert shown == [text, image, image]
    assert (held, path.rpartition(".")[2]) == (b"hi", "png")


def test_what_agentvs_part_names_elsewhere_is_its_path() -> None:
    files = SavedFiles()
    image: JsonValue = {"type": "image", "media_type": "image/png", "path": "pictures/a.png"}
    assert replace_images_with_files([agentv("pictures/a.png")], files.save_file) == [image]
    assert not files


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        ("image/jpeg", "jpg"),
        ("image/svg+xml", "svg"),
        ("image/../../etc/passwd", "bin"),
        ("image/p\0ng", "bin"),
        ("image/" + "x" * 300, "bin"),
        ("", "bin"),
    ],
)
def test_a_media_type_is_no_path(kind: str, suffix: str) -> None:
    files = SavedFiles()
    (image,) = replace_images_with_files([openai(f"data:{kind};base64,aGk=")], files.save_file)  # type: ignore[misc]
    (path,) = files
    assert image == {"type": "image", "media_type": kind, "path": path}
    _, _, name = path.partition("/kept/image-")
    assert (len(name), name[16:]) == (17 + len(suffix), f".{suffix}")


@pytest.mark.parametrize(
    "content",
    [
        "data:image/png;base64,aGk=",
        None,
        [openai("https://host/picture.png")],
        [openai("data:image/png;base64,a")],
        [openai("data:image/png;base64,\u00e4")],
        [openai("data:image/png,hi")],
        [openai("data:")],
        [openai(7)],
        [agentv(None)],
        [{"type": "image_url", "image_url": "data:image/png;base64,aGk="}],
        ["data:image/png;base64,aGk=", 7, None],
    ],
)
def test_what_is_no_image_in_place_stays_as_it_is(content: JsonValue) -> None:
    files = SavedFiles()
    assert replace_images_with_files(content, files.save_file) == content
    assert not files
