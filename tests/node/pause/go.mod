module pause

go 1.24
