"""What a run says: a table for people, JSON and JUnit for pipelines, one self-contained page to send to somebody.

Invariant: all four tell the same; a run is good when every section is.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

from accel.conformance.suite import Outcome, Result, SectionResult

__all__ = ["as_html", "as_json", "as_junit", "good", "ladder", "reds"]


def good(sections: Sequence[SectionResult]) -> bool:
    """Whether the device passes."""
    return all(section.good for section in sections)


def reds(sections: Sequence[SectionResult]) -> list[Result]:
    """What failed, or passed though it must not."""
    return [result for section in sections for result in section.results if result.outcome.red]


def ladder(sections: Sequence[SectionResult]) -> str:
    """The first rung of the bring-up ladder that does not hold: where to work next; empty when all hold."""
    for section in sections:
        if section.rung and not section.good:
            return section.name
    return ""


def as_json(sections: Sequence[SectionResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """The document that ``accel conformance --json`` prints."""
    return {
        **about,
        "passed": good(sections),
        "first_failing_rung": ladder(sections) or None,
        "sections": [
            {
                "name": section.name,
                "title": section.title,
                "good": section.good,
                "ran": section.ran,
                "minimum": section.minimum,
                "cases": [
                    {
                        "id": result.case.id,
                        "outcome": result.outcome.name.lower(),
                        "seconds": round(result.seconds, 6),
                        "message": result.message,
                    }
                    for result in section.results
                ],
            }
            for section in sections
        ],
    }


def as_junit(sections: Sequence[SectionResult], about: Mapping[str, Any]) -> str:
    """JUnit XML: a test suite a section; a section that ran too little is a failure of its own."""
    root = ElementTree.Element("testsuites", name=f"accel conformance {about.get('device', '')}")
    for section in sections:
        suite = ElementTree.SubElement(root, "testsuite", name=section.name, tests=str(len(section.results)))
        for result in section.results:
            node = ElementTree.SubElement(
                suite, "testcase", classname=section.name, name=result.case.name, time=f"{result.seconds:.6f}"
            )
            if result.outcome.red:
                ElementTree.SubElement(node, "failure", message=_xml_safe(result.message))
            elif not result.outcome.ran or result.outcome is Outcome.XFAILED:
                ElementTree.SubElement(node, "skipped", message=_xml_safe(result.message))
        if section.too_few:
            node = ElementTree.SubElement(suite, "testcase", classname=section.name, name="enough_cases_ran")
            ElementTree.SubElement(node, "failure", message=f"{section.ran} ran, {section.minimum} must")
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


_STYLE = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c1c1c;background:#fff}
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #ddd}
.good{color:#0a6b2d}.red{color:#b00020;font-weight:600}.quiet{color:#666}code{font-size:.92em}summary{cursor:pointer}
"""


def as_html(sections: Sequence[SectionResult], about: Mapping[str, Any]) -> str:
    """One page without any reference to elsewhere."""
    esc = html.escape
    verdict = '<span class="good">passes</span>' if good(sections) else '<span class="red">does not pass</span>'
    facts = "".join(f"<tr><td>{esc(str(key))}</td><td>{esc(str(value))}</td></tr>" for key, value in about.items())
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        f"<title>accel conformance: {esc(str(about.get('device', '')))}</title><style>{_STYLE}</style>",
        f"<h1>{esc(str(about.get('device', '')))} {verdict}</h1><table>{facts}</table>",
    ]
    for section in sections:
        kind, state = ("good", "") if section.good else ("red", "open")
        title = f"{esc(section.name)}: {esc(section.title)} ({section.ran} ran, {section.minimum} must)"
        parts.append(f'<details {state}><summary class="{kind}">{title}</summary><table>')
        for result in section.results:
            color = "red" if result.outcome.red else "good" if result.outcome is Outcome.PASSED else "quiet"
            parts.append(
                f'<tr><td><code>{esc(result.case.name)}</code></td><td class="{color}">{result.outcome.value}</td>'
                f"<td>{esc(result.message)}</td></tr>"
            )
        parts.append("</table></details>")
    return "".join(parts) + "</html>\n"


def _xml_safe(text: str) -> str:
    """Without the control characters that XML cannot express."""
    return "".join(char if char >= " " or char in "\t\n" else "\ufffd" for char in text)
