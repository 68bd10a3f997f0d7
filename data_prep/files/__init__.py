"""Reading source files and publishing prepared data: nothing here knows texts, pairs or clicks."""
