"""What people see: pages opened in a browser, light and dark, wide and narrow."""
