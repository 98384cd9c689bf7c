"""Opens pages in a browser, light and dark, wide and narrow, and checks what is displayed."""
