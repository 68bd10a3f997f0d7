"""The documentation builds without a warning, with the pages that are generated."""

import subprocess
import sys

import pytest
from support import ROOT, environment

from comera_dist.config.keys import key_sections


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    extra = {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(build, cwd=ROOT, env=environment(**extra), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_key_is_on_the_page_of_keys(site):
    page = (site / "configuration/index.html").read_text()
    assert not [key.name for section in key_sections() for key in section.keys if f"{key.name}</code>" not in page]


def test_every_package_has_a_page(site):
    packages = [path.parent.name for path in (ROOT / "comera_dist").glob("*/__init__.py")]
    for package in packages:
        assert f"comera_dist.{package}" in (site / "api" / package / "index.html").read_text()


def test_files_of_the_root_are_pages(site):
    assert "make quickstart" in (site / "index.html").read_text()
    assert 'href="measured/"' in (site / "index.html").read_text()
    for name in ("contributing", "changelog"):
        assert (site / name / "index.html").is_file()


def test_pictures_are_part_of_the_site(site):
    for picture in (ROOT / "docs").glob("*.png"):
        assert (site / picture.name).is_file()
