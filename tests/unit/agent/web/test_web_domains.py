"""Domain filters of web search, and the hosts of URLs."""

from __future__ import annotations

import pytest

from penstock.agent.web.domains import DomainFilter, host_of
from penstock.base.errors import InvalidRequest

IN_DOMAIN = [
    "http://example.com",
    "https://example.com/path?q=evil.test",
    "https://www.example.com/",
    "https://a.b.example.com:8443/",
    "https://EXAMPLE.com./",
    "https://example.com..../",
    "https://example。com/",
    "HTTPS://Www.Example.COM",
]
OUTSIDE = [
    "https://badexample.com/",
    "https://example.com.evil.test/",
    "https://example.com@evil.test/",
    "https://evil.test/example.com",
    "https://evil.test#.example.com",
    "https://evil.test?.example.com",
    "https://evil.test\\.example.com/",
    "https://evil.test%2f.example.com.evil.test/",
    "https://example/",
    "https://com/",
]
UNUSABLE = [
    "https://user@example.com/",
    "https://user:pass@example.com/",
    "ftp://example.com/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "data:text/html,x",
    "example.com",
    "//example.com/",
    "https://",
    "https:///x",
    "https://exam\0ple.com/",
    "https://example.com/\0",
    "https://example.com/\n",
    "https://[::1",
    "https://xn--zz/",
    "https://evil.test\\.example.com/",
    "https://evil.test%5c.example.com/",
    "https://exa mple.com/",
    "https://[fe80::1%25eth0]/",
    "https://example.com:port/",
    "https://example.com/" + "x" * 5000,
    "",
]


@pytest.mark.parametrize("url", IN_DOMAIN)
def test_domain_includes_itself_and_its_subdomains(url: str) -> None:
    assert DomainFilter(allowed=["example.com"]).allows(url)
    assert not DomainFilter(blocked=["example.com"]).allows(url)


@pytest.mark.parametrize("url", OUTSIDE)
def test_similar_urls_are_outside_of_a_domain(url: str) -> None:
    assert not DomainFilter(allowed=["example.com"]).allows(url)


@pytest.mark.parametrize("url", UNUSABLE)
def test_unusable_urls_are_never_allowed(url: str) -> None:
    assert host_of(url) is None and not DomainFilter().allows(url)


@pytest.mark.parametrize(
    "domain",
    ["example.com", "EXAMPLE.com.", " example.com ", "*.example.com", ".example.com",
     "https://example.com/docs", "http://example.com", "example.com/docs"],
)  # fmt: skip
def test_domains_of_a_filter_are_read_in_every_notation(domain: str) -> None:
    assert DomainFilter(allowed=[domain]).allowed == ("example.com",)


@pytest.mark.parametrize(
    "domain", ["bücher.de", "BÜCHER.DE", "xn--bcher-kva.de", "XN--BCHER-KVA.de"]
)
def test_international_domains_are_compared_in_their_ascii_form(domain: str) -> None:
    domains = DomainFilter(blocked=[domain])
    assert domains.blocked == ("xn--bcher-kva.de",)
    for url in ("https://bücher.de/", "https://shop.XN--bcher-kva.de./"):
        assert not domains.allows(url)


@pytest.mark.parametrize(
    "domain",
    ["", "*", ".", "a b.com", "exa*mple.com", "user@example.com", "ftp://example.com", "ex%61.com",
     "http://", "\0", "x" * 5000],
)  # fmt: skip
def test_text_that_is_no_domain_is_rejected_with_its_field(domain: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DomainFilter(allowed=[domain])
    assert caught.value.field == "allowed_domains" and "example.com" in caught.value.message
    with pytest.raises(InvalidRequest) as caught:
        DomainFilter(blocked=[domain])
    assert caught.value.field == "blocked_domains"


def test_blocked_subdomain_of_an_allowed_domain_is_blocked() -> None:
    domains = DomainFilter(allowed=["example.com"], blocked=["ads.example.com"])
    assert domains.allows("https://www.example.com/")
    assert not domains.allows("https://x.ads.example.com/")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "0x7f.0.0.1", "[::ffff:127.0.0.1]", "127.0.0.1."]
)
def test_blocked_address_is_blocked_in_every_notation(host: str) -> None:
    assert not DomainFilter(blocked=["127.0.0.1"]).allows(f"http://{host}/")


def test_end_of_an_address_is_not_its_domain() -> None:
    assert not DomainFilter(allowed=["0.0.1"]).allows("http://127.0.0.1/")
    assert not DomainFilter(allowed=["1"]).allows("http://127.0.0.1/")
