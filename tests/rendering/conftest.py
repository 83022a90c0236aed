"""The browser, for tests of pages."""

from browsing import browser as browser
