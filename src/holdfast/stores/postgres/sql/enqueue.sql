select holdfast.enqueue($1::text, $2::text)
